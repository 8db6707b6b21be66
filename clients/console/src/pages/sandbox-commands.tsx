import type { SandboxExec, SandboxInfo } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { isPossible } from '../lib/actions.ts';
import { berth } from '../lib/berth.ts';
import { duration } from '../lib/format.ts';
import { type Loaded, useLoaded } from '../lib/loading.ts';
import { text } from '../text.ts';
import { Shown, Together } from '../ui/loaded.tsx';
import { Button, Dialog, Empty, Field, Form, Panel, Status, type Values } from '../ui/parts.tsx';
import { type Column, Table } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';
import { ProcessesPanel, useProcesses } from './sandbox-processes.tsx';

const POLL_MS = 2_000;

/** Output of a command, and how it ended. */
export const Output = ({ stdout, stderr }: { stdout: string; stderr: string }): JSX.Element => (
  <>
    {stdout === '' && stderr === '' ? <p class="muted">{text.run.noOutput}</p> : null}
    {stdout === '' ? null : (
      <pre class="output" tabIndex={0} aria-label={text.run.stdout}>
        {stdout}
      </pre>
    )}
    {stderr === '' ? null : (
      <pre class="output error" tabIndex={0} aria-label={text.run.stderr}>
        {stderr}
      </pre>
    )}
  </>
);

function ExecDialog({
  id,
  exec,
  onClose,
}: {
  id: string;
  exec: SandboxExec;
  onClose: () => void;
}): JSX.Element {
  const load = async (signal: AbortSignal): Promise<SandboxExec> =>
    (await berth.sandboxes.get(id, { signal })).execs.get(exec.exec_id, { signal });
  const loaded = useLoaded(exec.exec_id, load, { everyMs: POLL_MS });
  return (
    <Dialog title={exec.command} onClose={onClose} isWide>
      <Shown of={loaded}>
        {(data) => (
          <div class="run-result">
            <div class="run-head">
              <ExecStatus exec={data} />
              <span class="muted">{summaryOf(data)}</span>
            </div>
            {data.output_truncated === true ? <p class="muted">{text.run.truncated}</p> : null}
            <Output stdout={data.stdout ?? ''} stderr={data.stderr ?? ''} />
          </div>
        )}
      </Shown>
    </Dialog>
  );
}

/** A command that has ended with another code than 0 is not shown as one that has succeeded. */
const ExecStatus = ({ exec: { status, exit_code: code } }: { exec: SandboxExec }): JSX.Element =>
  status === 'completed' && code !== undefined ? (
    <span class={`status ${code === 0 ? 'good' : 'bad'}`}>{text.run.exitCode(code)}</span>
  ) : (
    <Status of={status} />
  );

/** Why it ended, unless its exit code says so already, and how long it took. */
const summaryOf = ({ exit_reason: reason, exit_code: code, execute_time_ms: ms }: SandboxExec) =>
  [
    code === undefined || reason !== text.run.exitCode(code) ? reason : undefined,
    ms === undefined ? undefined : duration(ms),
  ]
    .filter(Boolean)
    .join(' · ');

interface ListProps {
  readonly id: string;
  readonly execs: readonly SandboxExec[];
  readonly reload: () => void;
}

function ExecList({ id, execs, reload }: ListProps): JSX.Element {
  const [shown, setShown] = useState<SandboxExec>();
  const cancel = async (exec: SandboxExec): Promise<void> => {
    await (await berth.sandboxes.get(id)).execs.cancel(exec.exec_id);
    reload();
  };
  const columns: Column<SandboxExec>[] = [
    {
      title: text.run.command,
      cell: (exec) => (
        <button type="button" class="link mono" onClick={() => setShown(exec)}>
          {exec.command.length > 120 ? `${exec.command.slice(0, 120)}…` : exec.command}
        </button>
      ),
    },
    { title: text.status, cell: (exec) => <ExecStatus exec={exec} /> },
    { title: text.run.result, isExtra: true, cell: summaryOf },
    { title: text.run.started, isExtra: true, cell: (exec) => <When at={exec.started_at} /> },
    {
      title: text.actions,
      isActions: true,
      cell: (exec) =>
        exec.status === 'running' ? (
          <Button kind="quiet" onClick={() => cancel(exec)}>
            {text.run.cancel}
          </Button>
        ) : null,
    },
  ];
  return (
    <>
      <Table
        label={text.sandbox.views.commands}
        columns={columns}
        rows={execs}
        keyOf={({ exec_id: eid }) => eid}
      />
      {shown === undefined ? null : (
        <ExecDialog id={id} exec={shown} onClose={() => setShown(undefined)} />
      )}
    </>
  );
}

function useExecs(id: string): Loaded<readonly SandboxExec[]> {
  const load = async (signal: AbortSignal): Promise<SandboxExec[]> => {
    const found = await berth.sandboxes.get(id, { signal, retries: 1 });
    return (await found.execs.list({ signal, retries: 1 })).toReversed();
  };
  return useLoaded(`execs ${id}`, load, { everyMs: POLL_MS });
}

interface PanelProps {
  readonly sandbox: SandboxInfo;
  readonly of: Loaded<readonly SandboxExec[]>;
}

function CommandsPanel({ sandbox, of }: PanelProps): JSX.Element {
  const { sandbox_id: id, status } = sandbox;
  const begin = async (values: Values): Promise<void> => {
    const found = await berth.sandboxes.get(id);
    await found.execs.begin({ command: values.get('command') });
    of.reload();
  };
  return (
    <Panel title={text.sandbox.views.commands}>
      <Form submit={text.run.run} onSubmit={begin} isRow disabled={!isPossible(status, 'exec')}>
        <Field
          label={text.run.command}
          name="command"
          class="mono"
          required
          placeholder="uname -a"
        />
      </Form>
      <Shown of={of}>
        {(execs) =>
          execs.length === 0 ? (
            <Empty title={text.run.noneYet}>
              <p>{text.run.noneYetHint}</p>
            </Empty>
          ) : (
            <ExecList id={id} execs={execs} reload={of.reload} />
          )
        }
      </Shown>
    </Panel>
  );
}

/** Commands of a sandbox, and the processes of its terminals and sessions. */
export function CommandsView({ sandbox }: { sandbox: SandboxInfo }): JSX.Element {
  const execs = useExecs(sandbox.sandbox_id);
  const processes = useProcesses(sandbox);
  return (
    <Together of={[execs, processes]}>
      <CommandsPanel sandbox={sandbox} of={execs} />
      <ProcessesPanel sandbox={sandbox} of={processes} />
    </Together>
  );
}
