import type { Sandbox } from '@berth/sdk';
import { Option } from '@commander-js/extra-typings';
import { leaf } from '../command.ts';
import { opened } from '../context.ts';
import { Failure } from '../failure.ts';
import { findSandbox } from '../find.ts';
import { duration, given } from '../values.ts';
import { showSandbox } from './sandbox-records.ts';

const COPY_HOOK = [
  '--copy-hook <command>',
  'run it in copies of its memory before they continue; "": none',
] as const;

interface Action {
  readonly name: string;
  readonly description: string;
  /** The progress line while the action goes on. */
  readonly doing: string;
  readonly act: (sandbox: Sandbox) => Promise<Sandbox>;
}

const ACTIONS: readonly Action[] = [
  {
    name: 'pause',
    description: 'Pause sandboxes: memory and processes are kept on the disk of their host.',
    doing: 'pausing',
    act: (sandbox) => sandbox.pause(),
  },
  {
    name: 'resume',
    description: 'Resume paused sandboxes where they were.',
    doing: 'resuming',
    act: (sandbox) => sandbox.resume(),
  },
  {
    name: 'stop',
    description: 'Shut sandboxes down; their disks are kept.',
    doing: 'stopping',
    act: (sandbox) => sandbox.stop(),
  },
];

const actionCommand = ({ name, description, doing, act }: Action) =>
  leaf(name)
    .description(description)
    .argument('<sandboxes...>', 'their names or ids')
    .action(async (names, options) => {
      const { output, berth } = await opened(options);
      for (const each of names) {
        const sandbox = await findSandbox(berth, each);
        await output.during(`${doing} ${sandbox.name}`, () => act(sandbox));
        output.done(`${sandbox.name} is ${sandbox.status}`, sandbox.info, sandbox.id);
      }
    });

const startCommand = () =>
  leaf('start')
    .description('Boot sandboxes from their disks; the memory of a paused one is discarded.')
    .argument('<sandboxes...>', 'their names or ids')
    .option(...COPY_HOOK)
    .action(async (names, { copyHook, ...options }) => {
      const { output, berth } = await opened(options);
      for (const each of names) {
        const sandbox = await findSandbox(berth, each);
        const start = (): Promise<Sandbox> => sandbox.boot(given({ copy_hook: copyHook }));
        await output.during(`starting ${sandbox.name}`, start);
        output.done(`${sandbox.name} is ${sandbox.status}`, sandbox.info, sandbox.id);
      }
    });

/** start, pause, resume and stop. */
export const actionCommands = () => [
  startCommand(),
  ...ACTIONS.map((action) => actionCommand(action)),
];

export const forkCommand = () =>
  leaf('fork')
    .description(
      'Copy a sandbox with its disk, memory and processes, and wait until the copy runs.',
    )
    .argument('<sandbox>', 'its name or id')
    .argument('[name]', 'of the copy; a random one when left out')
    .option(...COPY_HOOK)
    .action(async (source, name, { copyHook, ...options }) => {
      const { output, berth } = await opened(options);
      const sandbox = await findSandbox(berth, source);
      const copy = await output.during('forking', () =>
        sandbox.fork(given({ name, copy_hook: copyHook })),
      );
      showSandbox(output, copy.info);
    });

export const rmCommand = () =>
  leaf('rm')
    .description('Stop sandboxes and delete them with their disks.')
    .argument('<sandboxes...>', 'their names or ids')
    .option('--dry-run', 'only say what would be deleted')
    .action(async (names, { dryRun = false, ...options }) => {
      const { output, berth } = await opened(options);
      // All are looked up first: a wrong name must not be noticed halfway.
      const sandboxes = await Promise.all(names.map((name) => findSandbox(berth, name)));
      for (const sandbox of sandboxes) {
        const { name, id, status } = sandbox;
        const value = { sandbox_id: id, name, deleted: !dryRun };
        if (dryRun) output.done(`would delete ${name} (${id}), which is ${status}`, value, id);
        else {
          await output.during(`deleting ${name}`, () => sandbox.delete());
          output.done(`${name} is deleted`, value, id);
        }
      }
    });

const RESTING = ['running', 'paused', 'stopped', 'exited', 'failed'] as const;
const WAIT_SECONDS = 300;
const POLL_MS = 500;

export const waitCommand = () =>
  leaf('wait')
    .description('Wait until a sandbox is in a state.')
    .argument('<sandbox>', 'its name or id')
    .addOption(
      new Option('--for <status>', 'which one').choices(RESTING).default('running' as const),
    )
    .option('--timeout <time>', 'how long to wait; default 5m', duration)
    .action(async (name, { for: wanted, timeout = WAIT_SECONDS, ...options }) => {
      const { output, berth } = await opened(options);
      const sandbox = await findSandbox(berth, name);
      const deadline = performance.now() + timeout * 1_000;
      const isThere = (): boolean => sandbox.status === wanted;
      // Nothing but a start makes it run.
      const isHopeless = (): boolean => wanted === 'running' && sandbox.status === 'failed';
      await output.during(`waiting for ${sandbox.name} to be ${wanted}`, async () => {
        while (!isThere() && !isHopeless() && performance.now() < deadline) {
          await new Promise((resolve) => {
            setTimeout(resolve, POLL_MS);
          });
          await sandbox.refresh();
        }
      });
      if (isHopeless()) {
        const next = `berth sandbox get ${sandbox.name} says why, and berth sandbox start boots it`;
        throw new Failure(`${sandbox.name} has failed`, next);
      }
      if (!isThere()) {
        const next = `berth sandbox get ${sandbox.name} says more`;
        throw new Failure(`${sandbox.name} is still ${sandbox.status}`, next);
      }
      output.done(`${sandbox.name} is ${wanted}`, sandbox.info, sandbox.id);
    });

export const snapshotCommand = () =>
  leaf('snapshot')
    .description('Keep disk and memory of a sandbox under a name, to create others from.')
    .argument('<sandbox>', 'its name or id')
    .argument('<name>', 'of the snapshot')
    .option(...COPY_HOOK)
    .action(async (source, name, { copyHook, ...options }) => {
      const { output, berth } = await opened(options);
      const sandbox = await findSandbox(berth, source);
      const snapshot = await output.during('making a snapshot', () =>
        sandbox.snapshot(name, given({ copyHook })),
      );
      const next = `berth sandbox create --snapshot ${name} begins with it`;
      output.done(
        `snapshot ${name} is ${snapshot.info.status}; ${next}`,
        snapshot.info,
        snapshot.id,
      );
    });
