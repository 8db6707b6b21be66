import type { SandboxInfo } from '@berth/sdk';
import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { isPossible } from '../lib/actions.ts';
import { berth } from '../lib/berth.ts';
import { attempt, tell } from '../lib/notices.ts';
import type { SandboxTerminal, TerminalEnd } from '../lib/terminal.ts';
import { keepTerminals, type KeptTerminal, keptTerminals } from '../lib/terminals.ts';
import { text } from '../text.ts';
import { CrossIcon, PlusIcon } from '../ui/icons.tsx';
import { Button, Empty } from '../ui/parts.tsx';

/** A tab, with a process that runs, or one that is to be started. */
interface Tab {
  readonly key: string;
  readonly processId: string | undefined;
  readonly title: string;
}

let opened = 0;
function newTab({ id, title }: Partial<KeptTerminal>): Tab {
  opened += 1;
  return { key: String(opened), processId: id, title: title ?? text.terminal.shell };
}

const focusTab = (key: string): void =>
  document.querySelector<HTMLElement>(`#terminal-tab-${key}`)?.focus();

interface ScreenProps {
  readonly sandboxId: string;
  readonly tab: Tab;
  readonly isShown: boolean;
  readonly onReady: (terminal: SandboxTerminal) => void;
  readonly onChange: (change: Partial<Tab>) => void;
  readonly onOver: (how: TerminalEnd) => void;
}

function Screen({ sandboxId, tab, isShown, onReady, ...events }: ScreenProps): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const terminal = useRef<SandboxTerminal>(undefined);
  const latest = useRef(events);
  latest.current = events;
  useEffect(() => {
    let isGone = false;
    const open = async (): Promise<void> => {
      const [module, sandbox] = await Promise.all([
        import('../lib/terminal.ts'),
        berth.sandboxes.get(sandboxId),
      ]);
      if (isGone || box.current === null) return;
      const made = new module.SandboxTerminal(box.current, text.terminal.label, {
        onProcess: (processId) => latest.current.onChange({ processId }),
        onTitle: (title) => latest.current.onChange({ title }),
        onOver: (how) => latest.current.onOver(how),
        onLeave: () => focusTab(tab.key),
      });
      terminal.current = made;
      onReady(made);
      made.focus();
      await made.connect(sandbox, tab.processId);
    };
    attempt(open);
    return () => {
      isGone = true;
      terminal.current?.close();
    };
  }, []);
  useEffect(() => {
    if (isShown) terminal.current?.focus();
  }, [isShown]);
  return (
    <div
      ref={box}
      class="terminal"
      role="tabpanel"
      id={`terminal-${tab.key}`}
      aria-labelledby={`terminal-tab-${tab.key}`}
      hidden={!isShown}
    />
  );
}

const endText = (how: TerminalEnd | undefined): string =>
  how === undefined
    ? ''
    : how.kind === 'lost'
      ? text.terminal.lost(how.error.message)
      : text.terminal.ended(how.code, how.reason);

/** Copy, paste and search in the terminal that is shown. */
function Tools({ terminal }: { terminal: () => SandboxTerminal | undefined }): JSX.Element {
  const [wanted, setWanted] = useState('');
  const copy = async (): Promise<void> => {
    const selection = terminal()?.selection ?? '';
    if (selection === '') return;
    await navigator.clipboard.writeText(selection);
    tell(text.copied);
  };
  const paste = async (): Promise<void> => {
    terminal()?.paste(await navigator.clipboard.readText());
    terminal()?.focus();
  };
  return (
    <div class="end">
      <input
        type="search"
        aria-label={text.terminal.find}
        placeholder={text.terminal.find}
        value={wanted}
        onInput={(event) => setWanted(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === 'Enter') terminal()?.find(wanted, !event.shiftKey);
          if (event.key === 'Escape') terminal()?.focus();
        }}
      />
      <Button kind="quiet" onClick={copy}>
        {text.copy}
      </Button>
      <Button kind="quiet" onClick={paste}>
        {text.paste}
      </Button>
    </div>
  );
}

interface TabListProps {
  readonly tabs: readonly Tab[];
  readonly current: string;
  readonly onSelect: (key: string) => void;
  readonly onClose: (key: string) => void;
  readonly onAdd: () => void;
  readonly canAdd: boolean;
}

function TabList({ tabs, current, onSelect, onClose, onAdd, canAdd }: TabListProps): JSX.Element {
  const move = (event: KeyboardEvent): void => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    const at = tabs.findIndex(({ key }) => key === current);
    const next = tabs[(at + step + tabs.length) % tabs.length];
    if (next === undefined) return;
    onSelect(next.key);
    focusTab(next.key);
  };
  return (
    <>
      <div role="tablist" aria-label={text.terminal.tabs} onKeyDown={move}>
        {tabs.map(({ key, title }, n) => (
          <button
            key={key}
            type="button"
            role="tab"
            id={`terminal-tab-${key}`}
            aria-selected={key === current}
            aria-controls={`terminal-${key}`}
            tabIndex={key === current ? 0 : -1}
            onClick={() => onSelect(key)}
          >
            {`${n + 1}: ${title}`}
          </button>
        ))}
      </div>
      {tabs.length === 0 ? null : (
        <Button kind="quiet" label={text.terminal.close} onClick={() => onClose(current)}>
          <CrossIcon />
        </Button>
      )}
      <Button kind="quiet" label={text.terminal.open} disabled={!canAdd} onClick={onAdd}>
        <PlusIcon />
      </Button>
    </>
  );
}

/** The tabs of a sandbox, kept for the next load of the page while their processes run. */
function useTabs(sandboxId: string, isRunning: boolean) {
  const [tabs, setTabs] = useState<readonly Tab[]>(() => {
    const kept = keptTerminals(sandboxId).map(newTab);
    return kept.length === 0 && isRunning ? [newTab({})] : kept;
  });
  const [current, setCurrent] = useState(tabs[0]?.key ?? '');
  const [ends, setEnds] = useState<Readonly<Record<string, TerminalEnd>>>({});
  useEffect(() => {
    const kept = tabs.flatMap(({ key, processId: id, title }) =>
      id === undefined || ends[key] !== undefined ? [] : [{ id, title }],
    );
    keepTerminals(sandboxId, kept);
  }, [tabs, ends]);
  const change = (key: string, changed: Partial<Tab>): void =>
    setTabs((old) => old.map((tab) => (tab.key === key ? { ...tab, ...changed } : tab)));
  const add = (): void => {
    const tab = newTab({});
    setTabs([...tabs, tab]);
    setCurrent(tab.key);
  };
  const remove = (key: string): void => {
    const left = tabs.filter((tab) => tab.key !== key);
    setTabs(left);
    setCurrent(left.at(-1)?.key ?? '');
  };
  const end = (key: string, how: TerminalEnd): void => setEnds((old) => ({ ...old, [key]: how }));
  return { tabs, current, setCurrent, ends, change, add, remove, end };
}

export function TerminalView({ sandbox }: { sandbox: SandboxInfo }): JSX.Element {
  const { sandbox_id: id, status } = sandbox;
  const canConnect = isPossible(status, 'connect');
  const { tabs, current, setCurrent, ends, change, add, remove, end } = useTabs(id, canConnect);
  const terminals = useRef(new Map<string, SandboxTerminal>());
  const close = (key: string): void => {
    const terminal = terminals.current.get(key);
    if (ends[key] === undefined) attempt(async () => terminal?.kill());
    terminals.current.delete(key);
    remove(key);
  };
  // A sandbox that is paused while the page is loaded is waited for, with its tabs.
  const wasReady = useRef(false);
  wasReady.current ||= canConnect;
  const note = endText(ends[current]) || (canConnect ? '' : text.terminal.resting(status));
  return (
    <div class="terminal-box">
      <div class="terminal-bar">
        <TabList
          tabs={tabs}
          current={current}
          onSelect={setCurrent}
          onClose={close}
          onAdd={add}
          canAdd={canConnect}
        />
        <Tools terminal={() => terminals.current.get(current)} />
      </div>
      {(wasReady.current ? tabs : []).map((tab) => (
        <Screen
          key={tab.key}
          sandboxId={id}
          tab={tab}
          isShown={tab.key === current}
          onReady={(terminal) => terminals.current.set(tab.key, terminal)}
          onChange={(changed) => change(tab.key, changed)}
          onOver={(how) => end(tab.key, how)}
        />
      ))}
      {tabs.length === 0 ? <Empty title={text.terminal.none} /> : null}
      <p class="terminal-note" role="status">
        {note === '' ? text.terminal.hint : note}
      </p>
    </div>
  );
}
