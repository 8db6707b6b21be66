import assert from 'node:assert';
import { readFile, rm, writeFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ApiClient, ApiReply } from './api.ts';
import type { Environment } from './daemon.ts';
import { processesMarked } from './host.ts';
import type { Stack } from './stack.ts';
import { waitFor } from './wait.ts';
import { MiB } from '../../shared/units.ts';

/** A boot on a machine that does other things too. */
const SETTLED_MS_MAX = 120_000;
const MIB_SMALL = 256;
/** An agent that reaches nothing for so long rests. */
const REST_MS = 700;

/** A sandbox as the API shows it. */
export interface ApiSandbox {
  readonly sandbox_id: string;
  readonly name: string;
  readonly status: string;
  readonly max_ttl_seconds: number;
  readonly idle_ttl_seconds: number;
  readonly checkpoint?: string;
  readonly forked_from?: string;
  readonly exit_reason?: string;
  readonly exit_message?: string;
  readonly running_at?: string;
  readonly finished_at?: string;
  readonly expires_at?: string;
  readonly last_active_at: string;
  readonly base_image: string;
  readonly image?: object;
  readonly network?: object;
}

export interface ApiSandboxExec {
  readonly exec_id: string;
  readonly status: string;
  readonly command: string;
  readonly exit_code?: number;
  readonly exit_reason?: string;
  readonly stdout?: string;
  readonly stderr?: string;
  readonly started_at: string;
  readonly finished_at?: string;
  readonly execute_time_ms?: number;
}

/**
 * Whether the sandboxes of {@link sandboxSettings} are virtual machines. With
 * BERTH_TEST_RUNTIME=container they are containers: most tests of sandboxes and sessions hold for
 * them.
 */
export const runsMachines = process.env['BERTH_TEST_RUNTIME'] !== 'container';

/** Settings of a stack whose agents run sandboxes without prewarming. */
export function sandboxSettings(): Environment {
  if (!runsMachines) return containerSettings();
  const { GUEST_DIR, DEFAULT_ROOT_DISK } = process.env;
  assert(GUEST_DIR !== undefined && DEFAULT_ROOT_DISK !== undefined, 'run ./scripts/test');
  return { GUEST_DIR, DEFAULT_ROOT_DISK, SANDBOX_ACCELERATOR: 'tcg', SANDBOX_PREWARMED: '0' };
}

/** Settings of a stack whose sandboxes are containers, without prewarming. */
export const containerSettings = (): Environment => ({
  SANDBOX_RUNTIME: 'container',
  SANDBOX_DISK_BYTES: String(256 * MiB),
  SANDBOX_PREWARMED: '0',
});

export const sandboxPath = (id: string): string => `/api/sandboxes/${id}`;

export const getSandbox = (api: ApiClient, id: string): Promise<ApiSandbox> =>
  api.data<ApiSandbox>('GET', sandboxPath(id));

/** The sandbox in its account's list, if it is there. */
export async function findSandbox(api: ApiClient, name: string): Promise<ApiSandbox | undefined> {
  const { sandboxes } = await api.data<{ sandboxes: ApiSandbox[] }>('GET', '/api/sandboxes');
  return sandboxes.find((sandbox) => sandbox.name === name);
}

/** Waits until the sandbox is in a resting state. */
export const settledSandbox = (api: ApiClient, id: string): Promise<ApiSandbox> =>
  waitFor(
    `sandbox ${id} to settle`,
    async () => {
      const sandbox = await getSandbox(api, id).catch(() => undefined);
      const isSettled =
        sandbox !== undefined && !/^(?:pending|pausing|stopping)$/u.test(sandbox.status);
      return isSettled && sandbox;
    },
    SETTLED_MS_MAX,
  );

/** Creates a small sandbox and waits until it runs. */
export async function createSandbox(
  api: ApiClient,
  body: Readonly<Record<string, unknown>> = {},
): Promise<ApiSandbox> {
  const input = { mem_size_mib: MIB_SMALL, ...body };
  const { sandbox_id: id } = await api.data<ApiSandbox>('POST', '/api/sandboxes?wait=true', input);
  const sandbox = await settledSandbox(api, id);
  assert.equal(sandbox.status, 'running', JSON.stringify(sandbox));
  return sandbox;
}

/** Requests a command in a sandbox; with `wait` until it has ended. @returns any answer */
export const beginExec = (
  api: ApiClient,
  id: string,
  command: string,
  { wait = false, ...options }: Readonly<Record<string, unknown>> = {},
): Promise<ApiReply<{ success: boolean; data: ApiSandboxExec; code: string; error: string }>> =>
  api.call('POST', `${sandboxPath(id)}/execs${wait === true ? '?wait=true' : ''}`, {
    command,
    ...options,
  });

/** Runs a command in a sandbox to its end. */
export async function execIn(
  api: ApiClient,
  id: string,
  command: string,
  options: Readonly<Record<string, unknown>> = {},
): Promise<ApiSandboxExec> {
  const path = `${sandboxPath(id)}/execs`;
  const body = { command, ...options };
  const begun = await api.data<ApiSandboxExec>('POST', `${path}?wait=true`, body);
  return begun.status === 'running' ? endedExec(api, id, begun.exec_id) : begun;
}

export const endedExec = (api: ApiClient, id: string, execId: string): Promise<ApiSandboxExec> =>
  waitFor(
    `exec ${execId} to end`,
    async () => {
      const path = `${sandboxPath(id)}/execs/${execId}`;
      const exec = await api.data<ApiSandboxExec>('GET', path).catch(() => undefined);
      return exec !== undefined && exec.status !== 'running' && exec;
    },
    SETTLED_MS_MAX,
  );

/** Output of a command, which must have succeeded. */
export async function outputOf(api: ApiClient, id: string, command: string): Promise<string> {
  const exec = await execIn(api, id, command);
  assert.deepEqual([exec.status, exec.exit_code], ['completed', 0], JSON.stringify(exec));
  return exec.stdout ?? '';
}

export const commandSandbox = (
  api: ApiClient,
  id: string,
  command: 'start' | 'stop' | 'pause' | 'resume' | 'fork',
): Promise<ApiReply<{ success: boolean; data: ApiSandbox; code: string; error: string }>> =>
  api.call('POST', `${sandboxPath(id)}/${command}`);

/** Performs an action and waits for its result, which must be this status. */
export async function bring(
  api: ApiClient,
  id: string,
  command: 'start' | 'stop' | 'pause' | 'resume',
  status: string,
): Promise<ApiSandbox> {
  const reply = await commandSandbox(api, id, command);
  assert.equal(reply.status, 200, JSON.stringify(reply.body));
  const sandbox = await settledSandbox(api, id);
  assert.equal(sandbox.status, status, JSON.stringify(sandbox));
  return sandbox;
}

/** Forks a sandbox and waits until the copy runs. */
export async function forkSandbox(
  api: ApiClient,
  id: string,
  body: Readonly<Record<string, unknown>> = {},
): Promise<ApiSandbox> {
  const child = await api.data<ApiSandbox>('POST', `${sandboxPath(id)}/fork`, body);
  const settled = await settledSandbox(api, child.sandbox_id);
  assert.equal(settled.status, 'running', JSON.stringify(settled));
  return settled;
}

/** Stops it if it runs, and deletes it. */
export async function removeSandbox(api: ApiClient, id: string): Promise<void> {
  await commandSandbox(api, id, 'stop');
  await settledSandbox(api, id);
  const { status } = await api.call('DELETE', sandboxPath(id));
  assert.equal(status, 204);
}

/** The processes of the virtual machines that belong to these sandboxes. */
export async function machinesOf(ids: readonly string[]): Promise<number[]> {
  const found: number[] = [];
  for (const id of ids) {
    for (const line of await processesMarked(id)) {
      const [pid, program = ''] = line.split(' ');
      if (program.includes('qemu-system')) found.push(Number(pid));
    }
  }
  return found;
}

/** The process of a sandbox's virtual machine. @throws AssertionError when it has none */
export async function machineOf(id: string): Promise<number> {
  const [pid] = await machinesOf([id]);
  assert(pid !== undefined, `sandbox ${id} has no virtual machine`);
  return pid;
}

/**
 * The crash points of a stack's agents (agent/system/failpoint.ts), which were started with its
 * settings.
 */
export class Failpoints {
  readonly #file: string;

  constructor(file: string) {
    this.#file = file;
  }

  get settings(): Environment {
    return { FAILPOINTS: this.#file };
  }

  /** Makes the agent kill itself at this failpoint. */
  async arm(point: string): Promise<void> {
    await writeFile(this.#file, point);
  }

  async disarm(): Promise<void> {
    await rm(this.#file, { force: true });
  }

  async hasReached(point: string): Promise<boolean> {
    const text = await readFile(`${this.#file}.reached`, 'utf8').catch(() => '');
    return text.split('\n').includes(point);
  }

  /**
   * Failpoints reached since the last call, in order. An agent goes on after it has answered, so
   * this waits until it rests: what belongs to one command is not taken for another's.
   */
  async takeReached(): Promise<string[]> {
    const read = (): Promise<string> => readFile(`${this.#file}.reached`, 'utf8').catch(() => '');
    let text = await read();
    await waitFor('the agent to rest', async () => {
      await sleep(REST_MS);
      const before = text;
      text = await read();
      return text === before;
    });
    await rm(`${this.#file}.reached`, { force: true });
    // Uses are journalled by a timer, not by an action.
    return text.split('\n').filter((line) => line !== '' && !line.endsWith('journal use'));
  }
}

/** Waits until the agent has crashed, and restarts it. */
export async function restartCrashed(stack: Stack): Promise<void> {
  await waitFor('the agent to crash', async () => !stack.agent.isRunning, SETTLED_MS_MAX);
  await stack.startAgent();
}
