import type { SandboxInfo } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { isPossible, type SandboxAction } from '../lib/actions.ts';
import { berth } from '../lib/berth.ts';
import { useLoaded } from '../lib/loading.ts';
import { tell } from '../lib/notices.ts';
import { go, linkTo } from '../lib/router.ts';
import { text } from '../text.ts';
import {
  Button,
  Confirm,
  Dialog,
  Failure,
  Field,
  Form,
  Loading,
  type Values,
} from '../ui/parts.tsx';
import { Page, Stale, Status, Tabs } from '../ui/parts.tsx';
import { CopyHookField } from './sandbox-create.tsx';
import { CommandsView } from './sandbox-commands.tsx';
import { NetworkView } from './sandbox-network.tsx';
import { OverviewView } from './sandbox-overview.tsx';
import { PortsView } from './sandbox-ports.tsx';
import { TerminalView } from './sandbox-terminal.tsx';

const POLL_MS = 1_500;

type Dialogue = 'fork' | 'snapshot' | 'delete';

async function act(id: string, action: 'start' | 'stop' | 'pause' | 'resume'): Promise<void> {
  const sandbox = await berth.sandboxes.get(id);
  if (action === 'start') await sandbox.boot();
  else await sandbox[action]();
  tell(text.sandbox.done(action, sandbox.name));
}

interface ActionsProps {
  readonly sandbox: SandboxInfo;
  readonly reload: () => void;
  /** The page asks nothing of the sandbox while it is being deleted. */
  readonly onDeleting: (isDeleting: boolean) => void;
}

function Actions({ sandbox, reload, onDeleting }: ActionsProps): JSX.Element {
  const [open, setOpen] = useState<Dialogue>();
  const { sandbox_id: id, status } = sandbox;
  const button = (action: SandboxAction, onClick: () => unknown, kind?: 'danger'): JSX.Element => (
    <Button
      key={action}
      kind={kind ?? 'plain'}
      disabled={!isPossible(status, action)}
      hint={isPossible(status, action) ? undefined : text.sandbox.notNow(status)}
      onClick={onClick}
    >
      {text.sandbox.actions[action]}
    </Button>
  );
  const change = (action: 'start' | 'stop' | 'pause' | 'resume'): JSX.Element =>
    button(action, () => {
      setTimeout(reload, 100); // The state on the way is seen at once.
      return act(id, action).finally(reload);
    });
  return (
    <>
      {change(status === 'paused' ? 'resume' : 'start')}
      {change('pause')}
      {change('stop')}
      {button('fork', () => setOpen('fork'))}
      {button('snapshot', () => setOpen('snapshot'))}
      {button('delete', () => setOpen('delete'), 'danger')}
      {open === undefined ? null : (
        <ActionDialog
          kind={open}
          sandbox={sandbox}
          onClose={() => setOpen(undefined)}
          onDeleting={onDeleting}
        />
      )}
    </>
  );
}

interface DialogProps {
  readonly kind: Dialogue;
  readonly sandbox: SandboxInfo;
  readonly onClose: () => void;
  readonly onDeleting: (isDeleting: boolean) => void;
}

function ActionDialog({
  kind,
  sandbox: { sandbox_id: id, name, status, copy_hook: hook = '' },
  onClose,
  onDeleting,
}: DialogProps): JSX.Element {
  const copied = async (values: Values): Promise<void> => {
    const sandbox = await berth.sandboxes.get(id);
    const chosen = values.get('name');
    const copyHook = values.get('copy-hook');
    if (kind === 'fork') {
      const named = chosen === '' ? {} : { name: chosen };
      const copy = await sandbox.fork({ ...named, copy_hook: copyHook }, { wait: false });
      onClose();
      go(linkTo(['sandboxes', copy.id]));
      return;
    }
    await sandbox.snapshot(chosen, { copyHook });
    tell(text.snapshots.made(chosen));
    onClose();
  };
  if (kind === 'delete') {
    const remove = async (): Promise<void> => {
      onDeleting(true);
      try {
        await (await berth.sandboxes.get(id)).delete();
      } catch (error) {
        onDeleting(false);
        throw error;
      }
      tell(text.sandbox.deleted(name));
      go(linkTo(['sandboxes']));
    };
    return (
      <Confirm
        title={text.sandbox.deleteTitle(name)}
        submit={text.delete}
        name={name}
        onConfirm={remove}
        onClose={onClose}
      >
        <p>{text.sandbox.deleteText}</p>
      </Confirm>
    );
  }
  const title = kind === 'fork' ? text.sandbox.forkTitle(name) : text.sandbox.snapshotTitle(name);
  return (
    <Dialog title={title} onClose={onClose}>
      <Form submit={text.sandbox.actions[kind]} onSubmit={copied}>
        <p>{kind === 'fork' ? text.sandbox.forkText : text.sandbox.snapshotText}</p>
        {status === 'running' || status === 'paused' ? <p>{text.sandbox.sameMemory}</p> : null}
        <Field
          label={text.name}
          name="name"
          autofocus
          required={kind === 'snapshot'}
          maxLength={63}
          pattern="[a-z0-9]([a-z0-9\-]*[a-z0-9])?"
          hint={kind === 'fork' ? text.sandboxes.nameHint : text.snapshots.nameHint}
        />
        <CopyHookField value={hook} />
      </Form>
    </Dialog>
  );
}

function View({ sandbox, view }: { sandbox: SandboxInfo; view: string }): JSX.Element {
  switch (view) {
    case 'terminal':
      return <TerminalView sandbox={sandbox} />;
    case 'network':
      return <NetworkView sandbox={sandbox} />;
    case 'ports':
      return <PortsView sandbox={sandbox} />;
    case 'commands':
      return <CommandsView sandbox={sandbox} />;
    default:
      return <OverviewView sandbox={sandbox} />;
  }
}

export function SandboxPage({ id, view }: { id: string; view: string }): JSX.Element {
  const load = async (signal: AbortSignal): Promise<SandboxInfo> =>
    (await berth.sandboxes.get(id, { signal, retries: 1 })).info;
  const { data, error, reload, rest } = useLoaded(`sandbox ${id}`, load, { everyMs: POLL_MS });
  const [isDeleting, setDeleting] = useState(false);
  const onDeleting = (isBegun: boolean): void => {
    setDeleting(isBegun);
    if (isBegun) rest();
    else reload();
  };
  const crumbs = [[text.sandboxes.title, linkTo(['sandboxes'])]] as const;
  if (data === undefined) {
    return (
      <Page title={text.sandbox.title} crumbs={crumbs}>
        {error === undefined ? <Loading /> : <Failure error={error} retry={reload} />}
      </Page>
    );
  }
  const views = ['', 'terminal', 'commands', 'network', 'ports'] as const;
  const tabs = views.map(
    (each) =>
      [
        each,
        text.sandbox.views[each],
        linkTo(['sandboxes', id, ...(each === '' ? [] : [each])]),
      ] as const,
  );
  return (
    <Page
      title={data.name}
      crumbs={crumbs}
      beside={<Status of={data.status} />}
      actions={<Actions sandbox={data} reload={reload} onDeleting={onDeleting} />}
    >
      <Tabs label={text.sandbox.title} tabs={tabs} current={view} />
      <Stale error={error} />
      {isDeleting ? null : <View sandbox={data} view={view} />}
    </Page>
  );
}
