import type { SandboxInfo, SandboxProcess } from '@berth/sdk';
import type { JSX } from 'preact';
import { useEffect } from 'preact/hooks';
import { isPossible } from '../lib/actions.ts';
import { berth } from '../lib/berth.ts';
import { bytes } from '../lib/format.ts';
import { type Loaded, useLoaded } from '../lib/loading.ts';
import { go, linkTo } from '../lib/router.ts';
import { keepTerminals, keptTerminals } from '../lib/terminals.ts';
import { text } from '../text.ts';
import { Shown } from '../ui/loaded.tsx';
import { Button, Empty, Panel, Status } from '../ui/parts.tsx';
import { type Column, Table } from '../ui/table.tsx';

const POLL_MS = 3_000;
const COMMAND_MAX = 120;

/** The title of a terminal of this browser, or the command. */
function nameOf(sandboxId: string, { process_id: id, command }: SandboxProcess): string {
  const kept = keptTerminals(sandboxId).find((each) => each.id === id);
  return kept?.title ?? command?.slice(0, COMMAND_MAX) ?? text.processes.unknown;
}

/** Opens the process in a tab of the terminal page. */
function openTerminal(sandboxId: string, { process_id: id }: SandboxProcess): void {
  const kept = keptTerminals(sandboxId);
  if (!kept.some((each) => each.id === id)) {
    keepTerminals(sandboxId, [...kept, { id, title: text.terminal.shell }]);
  }
  go(linkTo(['sandboxes', sandboxId, 'terminal']));
}

/** Processes that sessions started, from this browser or elsewhere; those that run come first. */
export function useProcesses({ sandbox_id: id, status }: SandboxInfo): Loaded<SandboxProcess[]> {
  const canConnect = isPossible(status, 'connect');
  const load = async (signal: AbortSignal): Promise<SandboxProcess[]> => {
    if (!canConnect) return [];
    const found = await berth.sandboxes.get(id, { signal, retries: 1 });
    const all = await found.processes({ signal, retries: 1 });
    return all.sort((a, b) => Number(b.status === 'running') - Number(a.status === 'running'));
  };
  const loaded = useLoaded(`processes ${id}`, load, { everyMs: POLL_MS });
  useEffect(loaded.reload, [canConnect]);
  return loaded;
}

interface ProcessesProps {
  readonly sandbox: SandboxInfo;
  readonly of: Loaded<SandboxProcess[]>;
}

export function ProcessesPanel({ sandbox, of }: ProcessesProps): JSX.Element {
  const { sandbox_id: id, status } = sandbox;
  const end = async ({ process_id }: SandboxProcess): Promise<void> => {
    const process = await (await berth.sandboxes.get(id)).attach(process_id);
    await process.kill();
    process.detach();
    of.reload();
  };
  const columns: Column<SandboxProcess>[] = [
    { title: text.processes.one, cell: (each) => <code>{nameOf(id, each)}</code> },
    { title: text.status, cell: (each) => <Status of={each.status} /> },
    { title: text.processes.pid, isExtra: true, isNumber: true, cell: ({ pid }) => pid },
    {
      title: text.processes.clients,
      isExtra: true,
      isNumber: true,
      cell: (each) => each.attached_clients,
    },
    {
      title: text.processes.output,
      isExtra: true,
      isNumber: true,
      cell: (each) => bytes(each.output_bytes),
    },
    {
      title: text.actions,
      isActions: true,
      cell: (each) =>
        each.status === 'running' ? (
          <>
            {each.terminal === undefined ? null : (
              <Button
                kind="quiet"
                label={text.processes.openOf(each.pid)}
                onClick={() => openTerminal(id, each)}
              >
                {text.processes.open}
              </Button>
            )}
            <Button kind="quiet" label={text.processes.endOf(each.pid)} onClick={() => end(each)}>
              {text.processes.end}
            </Button>
          </>
        ) : null,
    },
  ];
  return (
    <Panel title={text.processes.title}>
      <Shown of={of}>
        {(processes) =>
          processes.length === 0 ? (
            <Empty
              title={
                isPossible(status, 'connect') ? text.processes.none : text.processes.resting(status)
              }
            />
          ) : (
            <Table
              label={text.processes.title}
              columns={columns}
              rows={processes}
              keyOf={({ process_id: key }) => key}
            />
          )
        }
      </Shown>
    </Panel>
  );
}
