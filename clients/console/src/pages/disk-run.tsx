import type { DiskInfo, ExecResult } from '@berth/sdk';
import { signal } from '@preact/signals';
import type { JSX } from 'preact';
import { berth } from '../lib/berth.ts';
import { duration } from '../lib/format.ts';
import { text } from '../text.ts';
import { Empty, Field, Form, Panel } from '../ui/parts.tsx';
import { Output } from './sandbox-commands.tsx';

interface Run {
  readonly id: number;
  readonly disk: string;
  readonly command: string;
  readonly result: ExecResult;
}

const RUNS_MAX = 50;
/**
 * Commands run since the page was loaded, newest first. The API keeps no record of these commands.
 */
const runs = signal<readonly Run[]>([]);

async function run(disk: DiskInfo, command: string): Promise<void> {
  const result = await (await berth.disks.get(disk.id)).exec(command);
  const id = (runs.value[0]?.id ?? 0) + 1;
  runs.value = [{ id, disk: disk.id, command, result }, ...runs.value].slice(0, RUNS_MAX);
}

const Result = ({ command, result }: Run): JSX.Element => (
  <article class="run-result">
    <div class="run-head">
      <code>{command}</code>
      <span class={`status ${result.exitCode === 0 ? 'good' : 'bad'}`}>
        {text.run.exitCode(result.exitCode)}
      </span>
      <span class="muted" title={text.run.timing(duration(result.timing.queueMs))}>
        {duration(result.timing.executeMs)}
      </span>
    </div>
    <Output stdout={result.stdout} stderr={result.stderr} />
  </article>
);

export function RunView({ disk }: { disk: DiskInfo }): JSX.Element {
  const done = runs.value.filter((each) => each.disk === disk.id);
  return (
    <Panel title={text.run.title}>
      <p class="muted">{text.run.hint}</p>
      <Form submit={text.run.run} onSubmit={(values) => run(disk, values.get('command'))} isRow>
        <Field
          label={text.run.command}
          name="command"
          class="mono"
          required
          list="commands"
          placeholder="ls -l"
        />
        <datalist id="commands">
          {[...new Set(done.map(({ command }) => command))].map((command) => (
            <option key={command} value={command} />
          ))}
        </datalist>
      </Form>
      <div aria-live="polite">
        {done.length === 0 ? (
          <Empty title={text.run.noneYet}>
            <p>{text.run.noneYetHint}</p>
          </Empty>
        ) : (
          done.map((each) => <Result key={each.id} {...each} />)
        )}
      </div>
    </Panel>
  );
}
