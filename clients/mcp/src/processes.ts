import type { Process, ProcessExit } from '@berth/sdk';
import { z } from 'zod';
import { EXCERPT_BYTES } from './excerpt.ts';
import { commandFields, encodingField, findSandbox, processField, sandboxField } from './fields.ts';
import { ProcessExcerpt } from './process-excerpt.ts';
import { bytesOf } from './read-part.ts';
import { describeExit, pause } from './sandboxes.ts';
import { type Call, tool, whileTelling } from './tool.ts';

const WAIT_SECONDS_MAX = 600;
/** Output that comes in one go is one answer. */
const QUIET_MS = 300;
const READ_BYTES_MAX = 2 * EXCERPT_BYTES;

const start = tool({
  name: 'process_start',
  title: 'Start a process in a sandbox',
  description:
    'Starts a shell command that goes on by itself, also when this server or the connection is gone: servers, long builds, REPLs. Read what it writes with process_output, write to it with process_input.',
  effect: 'destroy',
  input: {
    ...commandFields,
    terminal: z
      .boolean()
      .default(false)
      .describe('Give it a terminal (80 × 24) instead of pipes, for programs that want one.'),
    timeout_seconds: z
      .number()
      .int()
      .min(1)
      .max(86_400)
      .optional()
      .describe('It is killed after so long; never when omitted.'),
  },
  output: { process_id: z.string() },
  async run({ sandbox, command, timeout_seconds, ...options }, call) {
    const machine = await findSandbox(call, sandbox);
    const process = await machine.start(command, {
      ...options,
      ...{ timeoutSeconds: timeout_seconds, signal: call.signal },
    });
    process.detach();
    return { data: { process_id: process.id } };
  },
});

interface Reading {
  readonly process: Process;
  readonly output: ProcessExcerpt;
  exit: ProcessExit | undefined;
}

interface ReadingBounds {
  readonly untilMs: number;
  readonly waitsForExit: boolean;
}

/** Reads until the process has ended, is quiet after it wrote something, or the time is over. */
async function read(reading: Reading, bounds: ReadingBounds, { signal }: Call): Promise<void> {
  const { process, output: found } = reading;
  const chunks = process[Symbol.asyncIterator]();
  for (;;) {
    if (found.total >= READ_BYTES_MAX && !bounds.waitsForExit) return;
    const leftMs = bounds.untilMs - performance.now();
    const isQuietEnough = found.total > 0 && !bounds.waitsForExit;
    const next = chunks.next();
    const timer = new AbortController();
    const waitMs = Math.max(0, isQuietEnough ? Math.min(QUIET_MS, leftMs) : leftMs);
    const over = pause(waitMs, AbortSignal.any([signal, timer.signal])).then(() => undefined);
    over.catch(() => undefined);
    next.catch(() => undefined); // A rejection after the time limit is of no interest.
    const result = await Promise.race([next, over]);
    timer.abort();
    if (result === undefined) return;
    if (result.done === true) {
      reading.exit = await process.exit;
      return;
    }
    found.add(result.value);
  }
}

const output = tool({
  name: 'process_output',
  title: 'Read what a process writes',
  description:
    'Answers with what a process wrote from an offset on, and with its exit once it has ended. Waits up to wait_seconds for output, or with until_exit for its end. Go on with next_offset. The newest 1 to 4 MiB are kept, for 15 minutes after the end.',
  effect: 'read',
  input: {
    sandbox: sandboxField,
    process_id: processField,
    offset: z.number().int().min(0).default(0).describe('0, or next_offset of the last answer.'),
    wait_seconds: z.number().min(0).max(WAIT_SECONDS_MAX).default(5),
    until_exit: z.boolean().default(false).describe('Wait for its end, not just for output.'),
  },
  output: {
    stdout: z.string(),
    stderr: z.string(),
    next_offset: z.number().describe('Behind the last byte of both streams.'),
    skipped_bytes: z.number().describe('Bytes at the offset that are not kept any more.'),
    running: z.boolean(),
    exit_status: z.string().optional(),
    exit_code: z.number().optional(),
    reason: z.string().optional(),
  },
  async run({ sandbox, process_id, offset, wait_seconds, until_exit }, call) {
    const machine = await findSandbox(call, sandbox);
    const process = await machine.attach(process_id, { offset, signal: call.signal });
    const found = new ProcessExcerpt(offset);
    const reading: Reading = { process, output: found, exit: undefined };
    const untilMs = performance.now() + Math.max(wait_seconds * 1000, QUIET_MS);
    const work = read(reading, { untilMs, waitsForExit: until_exit }, call);
    try {
      await whileTelling(call, () => 'the process is running', work);
    } finally {
      process.detach();
    }
    const { exit } = reading;
    // Nothing comes after the end, and an answer without anything new would be repeated for ever.
    if (exit !== undefined || found.total === 0) found.release();
    const { status, exit_code, reason } = exit === undefined ? noExit : describeExit(exit);
    return {
      data: {
        ...{ stdout: found.stdout.text(), stderr: found.stderr.text() },
        next_offset: found.nextOffset,
        skipped_bytes: found.skippedBytes,
        ...{ running: exit === undefined, exit_status: status, exit_code, reason },
      },
    };
  },
});

const noExit = { status: undefined, exit_code: undefined, reason: undefined };

const input = tool({
  name: 'process_input',
  title: 'Write to a process',
  description:
    'Writes to the standard input of a process, and waits until it has taken it. End lines with a newline; in a terminal \\u0003 is Ctrl-C and \\u0004 Ctrl-D.',
  effect: 'destroy',
  input: {
    sandbox: sandboxField,
    process_id: processField,
    content: z.string().default(''),
    encoding: encodingField,
    end: z.boolean().default(false).describe('The end of its input, after the content.'),
  },
  output: { written_bytes: z.number() },
  async run({ sandbox, process_id, content, encoding, end }, call) {
    const { signal } = call;
    const machine = await findSandbox(call, sandbox);
    const process = await machine.attach(process_id, { signal });
    const bytes = bytesOf(content, encoding);
    // Read by nobody, its output would make the process wait; it is kept for process_output all the
    // same.
    process.wait().catch(() => undefined);
    const writing = async (): Promise<void> => {
      await process.write(bytes, { signal });
      if (end) process.closeInput();
      await process.flush({ signal });
    };
    try {
      await whileTelling(call, () => 'the process does not read', writing());
    } finally {
      process.detach();
    }
    return { data: { written_bytes: bytes.length } };
  },
});

const kill = tool({
  name: 'process_kill',
  title: 'Kill a process',
  description: 'Ends a process and its group by SIGKILL. Nothing happens when it has ended.',
  effect: 'destroy',
  idempotent: true,
  input: { sandbox: sandboxField, process_id: processField },
  output: { killed: z.string() },
  async run({ sandbox, process_id }, call) {
    const machine = await findSandbox(call, sandbox);
    const process = await machine.attach(process_id, { signal: call.signal });
    try {
      await process.kill();
    } finally {
      process.detach();
    }
    return { data: { killed: process_id } };
  },
});

export const processTools = [start, output, input, kill];
