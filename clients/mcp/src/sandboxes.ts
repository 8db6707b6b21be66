import { setTimeout as sleep } from 'node:timers/promises';
import type { Process, ProcessExit, Sandbox } from '@berth/sdk';
import { z } from 'zod';
import { Excerpt } from './excerpt.ts';
import {
  commandFields,
  defined,
  describeSandbox,
  findSandbox,
  sandboxField,
  sandboxFields,
} from './fields.ts';
import { type Call, tool, whileTelling } from './tool.ts';

const RUN_SECONDS = 120;
const RUN_SECONDS_MAX = 3_600;
const WAIT_SECONDS_MAX = 600;
const LISTED_MAX = 200;
/** Bounds of the API (docs/api.md, Sandboxes): a model that knows them asks for what it can get. */
const MEM_MIB_MIN = 256;
const MEM_MIB_MAX = 65_536;
const VCPUS_MAX = 32;
const IDLE_SECONDS_MAX = 86_400;
const IMAGE_LENGTH_MAX = 512;
const HOOK_LENGTH_MAX = 8192;
const LINE_LENGTH_MAX = 200;
const TELL_EVERY_MS = 1_000;

const STATUSES = ['running', 'paused', 'stopped', 'exited', 'failed'] as const;

const SAME_MEMORY =
  'Warning: programs that run in it draw the same random numbers in every copy of its memory (keys, tokens, UUIDs of Node and of others that keep random state); make them draw anew by copy_hook, or start them in the copy.';
const copyHookField = z
  .string()
  .max(HOOK_LENGTH_MAX)
  .optional()
  .describe(
    'Shell command that runs in each copy of its memory before its other processes continue, at most 10 s; empty: none. /run/berth/generation is another one in each copy.',
  );

const list = tool({
  name: 'sandbox_list',
  title: 'List sandboxes',
  description: 'The sandboxes of the account, oldest first.',
  effect: 'read',
  input: {
    status: z.string().optional().describe('Only those with this status, such as running.'),
  },
  output: {
    sandboxes: z.array(z.object(sandboxFields)),
    total: z.number().describe('How many there are; at most 200 are shown, the newest.'),
  },
  async run({ status }, { berth, signal }) {
    const all = await berth.sandboxes.list({ signal });
    const wanted = all.filter((each) => status === undefined || each.status === status);
    const shown = wanted.slice(-LISTED_MAX).map(({ info }) => describeSandbox(info));
    return { data: { sandboxes: shown, total: wanted.length } };
  },
});

const get = tool({
  name: 'sandbox_get',
  title: 'Show a sandbox',
  description: 'Its status, size and image, and why it ended.',
  effect: 'read',
  input: { sandbox: sandboxField },
  output: sandboxFields,
  run: async ({ sandbox }, call) => answerOf(await findSandbox(call, sandbox)),
});

const create = tool({
  name: 'sandbox_create',
  title: 'Create a sandbox',
  description:
    'Creates a machine with a disk of its own and waits until it runs. It stays until sandbox_delete; when the call is cancelled meanwhile, it is created all the same.',
  effect: 'change',
  input: {
    name: z.string().min(1).max(63).optional().describe('Unique; a random one when omitted.'),
    image: z
      .string()
      .max(IMAGE_LENGTH_MAX)
      .optional()
      .describe(
        'OCI image such as python:3.13; the default image (Debian with Python and Node) when omitted.',
      ),
    snapshot: z
      .string()
      .max(100)
      .optional()
      .describe(`Id or name of a snapshot to begin from. ${SAME_MEMORY}`),
    copy_hook: copyHookField,
    mem_size_mib: z
      .number()
      .int()
      .min(MEM_MIB_MIN)
      .max(MEM_MIB_MAX)
      .optional()
      .describe('Default 2048.'),
    vcpu_count: z.number().int().min(1).max(VCPUS_MAX).optional().describe('Default 1.'),
    env: z.record(z.string(), z.string()).optional().describe('Variables of all its commands.'),
    idle_ttl_seconds: z
      .number()
      .int()
      .min(0)
      .max(IDLE_SECONDS_MAX)
      .optional()
      .describe('Pause it when nothing was done in it for so long; 0: never.'),
  },
  output: sandboxFields,
  async run({ image, ...fields }, call) {
    const body = { ...fields, ...(image === undefined ? {} : { base_image: image }) };
    const { berth, signal } = call;
    const creating = berth.sandboxes.create(defined(body), { signal });
    return answerOf(await whileTelling(call, () => 'the sandbox is being created', creating));
  },
});

const fork = tool({
  name: 'sandbox_fork',
  title: 'Fork a sandbox',
  description: `Copies a sandbox with its disk and, while it runs or is paused, its memory and processes, and waits until the copy runs. The original goes on. ${SAME_MEMORY}`,
  effect: 'change',
  input: {
    sandbox: sandboxField,
    name: z.string().min(1).max(63).optional().describe('Of the copy; a random one when omitted.'),
    copy_hook: copyHookField,
  },
  output: sandboxFields,
  async run({ sandbox, name, copy_hook }, call) {
    const source = await findSandbox(call, sandbox);
    const copying = source.fork(defined({ name, copy_hook }), { signal: call.signal });
    return answerOf(await whileTelling(call, () => 'the sandbox is being copied', copying));
  },
});

const exitFields = {
  status: z.enum(['completed', 'failed', 'cancelled', 'timed_out']),
  exit_code: z.number().optional().describe('Missing when it was killed or timed out.'),
  reason: z.string().optional(),
};
export const outputFields = {
  stdout: z.string(),
  stderr: z.string(),
  stdout_bytes: z.number().describe('All that was written, of which the middle may be left out.'),
  stderr_bytes: z.number(),
};

/** @returns how a process ended, as tools answer it */
export const describeExit = ({ status, exitCode, reason }: ProcessExit) => ({
  status,
  exit_code: exitCode,
  reason,
});

/** Collects the excerpts of a process's output, and tells its last line now and then. */
class Output {
  readonly stdout = new Excerpt();
  readonly stderr = new Excerpt();
  readonly #call: Call;
  #toldAt = performance.now();
  lastLine = '';

  constructor(call: Call) {
    this.#call = call;
  }

  add(stream: 'stdout' | 'stderr', bytes: Uint8Array): void {
    this[stream].add(bytes);
    const now = performance.now();
    if (now - this.#toldAt < TELL_EVERY_MS) return;
    this.#toldAt = now;
    this.lastLine = lastLineOf(bytes);
    if (this.lastLine !== '') this.#call.progress(this.lastLine);
  }

  get fields(): z.output<z.ZodObject<typeof outputFields>> {
    const { stdout, stderr } = this;
    return {
      stdout: stdout.text(),
      stderr: stderr.text(),
      stdout_bytes: stdout.total,
      stderr_bytes: stderr.total,
    };
  }
}

function lastLineOf(bytes: Uint8Array): string {
  const text = new TextDecoder().decode(bytes.subarray(-1024));
  return (
    text
      .trimEnd()
      .split(/[\r\n]/u)
      .at(-1) ?? ''
  ).slice(0, LINE_LENGTH_MAX);
}

/** Kills the process when the caller goes before it has ended. */
async function readToEnd(process: Process, output: Output): Promise<ProcessExit> {
  try {
    for await (const { stream, bytes } of process) output.add(stream, bytes);
    return await process.exit;
  } catch (error) {
    await process[Symbol.asyncDispose]();
    throw error;
  }
}

const run = tool({
  name: 'sandbox_run',
  title: 'Run a command in a sandbox',
  description:
    'Runs a shell command to its end and answers with its output and exit code; any exit code is a result. The command is killed when the call is cancelled. Background processes that it leaves (setsid, nohup) go on.',
  effect: 'destroy',
  input: {
    ...commandFields,
    stdin: z.string().optional().describe('All of its input; none when omitted.'),
    timeout_seconds: z
      .number()
      .int()
      .min(1)
      .max(RUN_SECONDS_MAX)
      .default(RUN_SECONDS)
      .describe('It is killed after so long.'),
  },
  output: { ...exitFields, ...outputFields },
  async run({ sandbox, command, stdin = '', timeout_seconds, ...options }, call) {
    const { signal } = call;
    const machine = await findSandbox(call, sandbox);
    const process = await machine.start(command, {
      ...options,
      ...{ timeoutSeconds: timeout_seconds, signal },
    });
    const output = new Output(call);
    const writing = process.write(stdin).then(() => process.closeInput());
    const ending = readToEnd(process, output);
    const tell = (): string => output.lastLine || 'the command is running';
    const [exit] = await whileTelling(call, tell, Promise.all([ending, writing]));
    const data = { ...describeExit(exit), ...output.fields };
    return { data, text: describeRun(data) };
  },
});

interface RunData extends z.output<z.ZodObject<typeof outputFields>> {
  readonly status: string;
  readonly exit_code?: number | undefined;
  readonly reason?: string | undefined;
}

/** A run as text: the exit first, then what there is of output. */
export function describeRun({ status, exit_code, reason, stdout, stderr }: RunData): string {
  const code = exit_code === undefined ? status : `exit code ${exit_code}`;
  const parts = [reason === undefined ? code : `${code}: ${reason}`];
  if (stdout !== '') parts.push(`stdout:\n${stdout}`);
  if (stderr !== '') parts.push(`stderr:\n${stderr}`);
  return parts.join('\n');
}

/** A tool that moves a sandbox from one state to another. */
const moving = (
  action: 'pause' | 'resume' | 'stop' | 'start',
  title: string,
  description: string,
  isDestructive = false,
) =>
  tool({
    name: `sandbox_${action}`,
    title,
    description,
    effect: isDestructive ? 'destroy' : 'change',
    idempotent: true,
    input: { sandbox: sandboxField },
    output: sandboxFields,
    async run({ sandbox }, call) {
      const { signal } = call;
      const machine = await findSandbox(call, sandbox);
      const work = action === 'start' ? machine.boot({}, { signal }) : machine[action]({ signal });
      const tell = (): string => `the sandbox is ${machine.status}`;
      return answerOf(await whileTelling(call, tell, work));
    },
  });

const wait = tool({
  name: 'sandbox_wait',
  title: 'Wait for a sandbox',
  description: 'Waits until a sandbox has one of the statuses, or the time is over.',
  effect: 'read',
  input: {
    sandbox: sandboxField,
    status: z.array(z.enum(STATUSES)).min(1).max(STATUSES.length).default(['running']),
    timeout_seconds: z.number().int().min(1).max(WAIT_SECONDS_MAX).default(60),
  },
  output: { ...sandboxFields, reached: z.boolean().describe('Whether it has one of them.') },
  async run({ sandbox, status: wanted, timeout_seconds }, call) {
    const machine = await findSandbox(call, sandbox);
    const isThere = (): boolean => wanted.some((status) => status === machine.status);
    const until = performance.now() + timeout_seconds * 1000;
    const waiting = async (): Promise<void> => {
      while (!isThere() && performance.now() < until) {
        await pause(1_000, call.signal);
        await machine.refresh({ signal: call.signal });
      }
    };
    await whileTelling(call, () => `the sandbox is ${machine.status}`, waiting());
    return { data: { ...describeSandbox(machine.info), reached: isThere() } };
  },
});

const remove = tool({
  name: 'sandbox_delete',
  title: 'Delete a sandbox',
  description: 'Stops it if it runs, and deletes it with its disk. This cannot be undone.',
  effect: 'destroy',
  idempotent: true,
  input: { sandbox: sandboxField },
  output: { deleted: z.string().describe('Id of the sandbox.') },
  async run({ sandbox }, call) {
    const machine = await findSandbox(call, sandbox);
    const deleting = machine.delete({ signal: call.signal });
    await whileTelling(call, () => 'the sandbox is being deleted', deleting);
    return { data: { deleted: machine.id } };
  },
});

/** Resolves after the time. @throws the signal's reason */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
  return sleep(ms, undefined, { signal });
}

const answerOf = ({ info }: Sandbox): { data: ReturnType<typeof describeSandbox> } => ({
  data: describeSandbox(info),
});

export const sandboxTools = [
  ...[list, get, create, fork, run],
  moving(
    'pause',
    'Pause a sandbox',
    'Keeps memory and processes on disk, and frees the processor.',
  ),
  moving('resume', 'Resume a sandbox', 'Continues a paused sandbox where it was.'),
  moving('start', 'Start a sandbox', 'Boots a stopped sandbox from its disk.'),
  moving('stop', 'Stop a sandbox', 'Shuts it down: processes end, the disk stays.', true),
  ...[wait, remove],
];
