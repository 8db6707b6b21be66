import assert from 'node:assert';
import { mkdir, mkdtempDisposable, readdir, readFile, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import type { Environment } from '../test/helpers/daemon.ts';
import { Stack } from '../test/helpers/stack.ts';
import { GiB } from '../shared/units.ts';
import { drawFlameGraph, type Period, readProfile } from './flame-graph.ts';
import { findGuest } from './sandbox.ts';
import { SandboxCalls } from './sandbox-calls.ts';

const COMMANDS = 600;
const SANDBOXES = 30;
const WARM_UP = 5;
const MEM_SIZE_MIB = 256;

/** Work whose profile is taken, by one caller. */
interface Work {
  readonly title: string;
  readonly settings: () => Promise<Environment>;
  /** @returns a call of the work; the first ones are not in the profile */
  readonly prepare: (stack: Stack) => Promise<() => Promise<void>>;
  readonly calls: number;
}

const works: Readonly<Record<string, Work>> = {
  exec: {
    title: `${COMMANDS} commands (true) on a disk, one after the other`,
    settings: () => Promise.resolve({ DISK_SIZE_BYTES: String(GiB) }),
    prepare: async (stack) => {
      const api = await stack.newClient();
      const { id } = await api.data<{ id: string }>('POST', '/api/disks', { name: 'profile' });
      return async () => {
        await api.data('POST', `/api/disks/${id}/exec`, { command: 'true' });
      };
    },
    calls: COMMANDS,
  },
  create: {
    title: `${SANDBOXES} sandboxes created, a first command, removed, one after the other`,
    settings: async () => {
      const { guestDir, rootDisk } = await findGuest();
      return { GUEST_DIR: guestDir, DEFAULT_ROOT_DISK: rootDisk, SANDBOX_PREWARMED: '2' };
    },
    prepare: async (stack) => {
      const calls = new SandboxCalls(await stack.newClient(), new AbortController().signal);
      return async () => {
        const id = await calls.createRunning(MEM_SIZE_MIB);
        await calls.output(id, 'echo ready');
        await calls.remove(id);
      };
    },
    calls: SANDBOXES,
  },
};

/**
 * `npm run bench -- profile --out DIRECTORY [--only exec,create]`: flame graphs of control and
 * agent.
 */
export async function benchProfile(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      out: { type: 'string' },
      only: { type: 'string', default: Object.keys(works).join(',') },
    },
  });
  const { out } = values;
  assert(out !== undefined, '--out: a directory for the flame graphs');
  await mkdir(out, { recursive: true });
  for (const name of values.only.split(',')) {
    const work = works[name];
    assert(work !== undefined, `--only: some of ${Object.keys(works).join(',')}`);
    await profile(name, work, out);
  }
}

async function profile(name: string, work: Work, out: string): Promise<void> {
  await using profiles = await mkdtempDisposable(join(tmpdir(), 'berth-profile-'));
  const NODE_OPTIONS = `--cpu-prof --cpu-prof-dir=${profiles.path}`;
  const stack = await Stack.start({ ...(await work.settings()), NODE_OPTIONS }, [], true);
  const pids = { control: stack.control.pid, agent: stack.agent.pid };
  try {
    const call = await work.prepare(stack);
    for (let i = 0; i < WARM_UP; i += 1) await call();
    const from = nowMicros();
    for (let i = 0; i < work.calls; i += 1) await call();
    const period = { from, to: nowMicros() };
    await stack.control.stop();
    await stack.agent.stop();
    for (const [part, pid] of Object.entries(pids)) {
      const file = join(out, `${name}-${part}.svg`);
      await writeFile(file, await draw(profiles.path, pid, part, work, period));
      process.stdout.write(`${file}\n`);
    }
  } finally {
    await stack.stop();
  }
}

/** The clock that V8 samples by. */
const nowMicros = (): number => Number(process.hrtime.bigint() / 1000n);

async function draw(
  directory: string,
  pid: number,
  part: string,
  { title, calls }: Work,
  period: Period,
): Promise<string> {
  // CPU.<date>.<time>.<process>.<thread>.<number>.cpuprofile; the main thread is 0.
  const names = await readdir(directory);
  const name = names.find((each) => each.split('.').slice(3, 5).join('.') === `${pid}.0`);
  assert(name !== undefined, `${part} wrote no profile`);
  const all = readProfile(await readFile(join(directory, name), 'utf8'), process.cwd(), period);
  const eachMs = (all.micros / 1000 / calls).toFixed(1);
  return drawFlameGraph(all, `${part}: ${title}. Main thread busy: ${eachMs} ms each`);
}
