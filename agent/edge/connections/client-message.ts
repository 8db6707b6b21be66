import Type from 'typebox';
import { AppError } from '../../../shared/errors.ts';
import { JsonRefused, parseCallerJson } from '../../../shared/json.ts';
import { EDGE_LIMITS } from '../limits.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import { compile, taggedUnion } from '../../../shared/validate.ts';
import { GUEST_LIMITS } from '../../machines/guest-link/guest-protocol.ts';
import { ProcessError } from '../../sandboxes/processes/process-error.ts';
import type { AttachableSpec } from '../../sandboxes/processes/sandbox-processes.ts';

/* Messages of clients in text frames (docs/process-connections.md). */

const NO_NUL = '^[^\\0]*$';
const UUID = '^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$';
const VARIABLE_NAME = '^[^=\\0]+$';
const processId = Type.String({ minLength: 1, maxLength: 64 });
const windowEdge = Type.Integer({ minimum: 1, maximum: 65_535 });
const { outputWindowBytesMin, outputWindowBytesMax, outputWindowBytes } = EDGE_LIMITS;
const DEFAULT_TERMINAL = { columns: 80, rows: 24 } as const;

/** Framing of connections that are attached to a process: how its bytes are sent both ways. */
const framing = {
  client_id: Type.Optional(Type.String({ minLength: 1, maxLength: 64 })),
  version: Type.Optional(Type.Integer({ minimum: 1, maximum: 2 })),
  window: Type.Optional(
    Type.Integer({ minimum: outputWindowBytesMin, maximum: outputWindowBytesMax }),
  ),
};

const Start = Type.Object({
  type: Type.Literal('start'),
  ...framing,
  process_id: Type.Optional(Type.String({ pattern: UUID })),
  command: Type.String({ minLength: 1, maxLength: GUEST_LIMITS.commandMax, pattern: NO_NUL }),
  terminal: Type.Optional(
    Type.Union([
      Type.Null(),
      Type.Boolean(),
      Type.Object({ cols: Type.Optional(windowEdge), rows: Type.Optional(windowEdge) }),
    ]),
  ),
  env: Type.Optional(
    Type.Union([
      Type.Null(),
      Type.Record(Type.String({ pattern: VARIABLE_NAME }), Type.String({ pattern: NO_NUL }), {
        additionalProperties: false,
        maxProperties: GUEST_LIMITS.environmentEntriesMax,
      }),
    ]),
  ),
  timeout_seconds: Type.Optional(
    Type.Union([
      Type.Null(),
      Type.Integer({ minimum: 1, maximum: SCHEMA_LIMITS.sandboxExecTimeoutSecondsMax }),
    ]),
  ),
  cwd: Type.Optional(
    Type.Union([
      Type.Null(),
      Type.String({ pattern: '^/[^\\0]*$', maxLength: GUEST_LIMITS.directoryMax }),
    ]),
  ),
});

const Attach = Type.Object({
  type: Type.Literal('attach'),
  ...framing,
  process_id: processId,
  offset: Type.Optional(Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER })),
});

const Kill = Type.Object({ type: Type.Literal('kill'), process_id: processId });

const Resize = Type.Object({
  type: Type.Literal('resize'),
  process_id: processId,
  cols: windowEdge,
  rows: windowEdge,
});

const FirstMessage = taggedUnion('type', [Start, Attach, Kill, Resize]);
export type FirstMessage = Type.Static<typeof FirstMessage>;
export type StartMessage = Type.Static<typeof Start>;
/** A message on a connection that carries a process's bytes. */
export type AttachingMessage = StartMessage | Type.Static<typeof Attach>;

const checkFirst = compile(FirstMessage);

const refuse = (message: string, cause?: unknown): ProcessError =>
  new ProcessError('invalid_request', message, { cause });

function parse(text: Buffer): unknown {
  try {
    return parseCallerJson(text.toString('utf8'));
  } catch (error) {
    const why = error instanceof JsonRefused ? `: ${error.message}` : '';
    throw refuse(`the message is not valid JSON${why}`, error);
  }
}

/** The message that chooses what a connection is for. @throws ProcessError `invalid_request` */
export function parseFirstMessage(data: Buffer, isBinary: boolean): FirstMessage {
  if (isBinary) throw refuse('the first message must be a JSON text frame');
  const value = parse(data);
  try {
    return checkFirst(value, 'message');
  } catch (error) {
    if (error instanceof AppError) throw refuse(error.message, error);
    throw error;
  }
}

/**
 * How far ahead of what it has read a client may be sent output, in bytes; Infinity in version 1.
 */
export const windowOf = ({ version, window }: AttachingMessage): number =>
  version === 2 ? (window ?? outputWindowBytes) : Infinity;

const CloseStdin = Type.Object({ type: Type.Literal('close_stdin') });
const Read = Type.Object({
  type: Type.Literal('read'),
  offset: Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER }),
});
export type NextMessage = Type.Static<typeof CloseStdin> | Type.Static<typeof Read>;

const checkNext = {
  1: compile(CloseStdin),
  2: compile(taggedUnion('type', [CloseStdin, Read])),
} as const;

/** A text frame after the first one. @throws ProcessError `invalid_request` */
export function parseNextMessage(data: Buffer, version: 1 | 2): NextMessage {
  const value = parse(data);
  try {
    return checkNext[version](value, 'message');
  } catch (error) {
    if (!(error instanceof AppError)) throw error;
    const known = version === 1 ? 'close_stdin' : 'close_stdin, read';
    const message = `after the first message, only ${known} and binary frames of input may follow`;
    throw refuse(message, error);
  }
}

const INPUT_HEAD_BYTES = 8;

/**
 * Input of version 2: u64 big-endian offset among all input of the process, the bytes.
 * @throws ProcessError `invalid_request`
 */
export function decodeInput(data: Buffer): { offset: number; bytes: Buffer } {
  const offset = data.length < INPUT_HEAD_BYTES ? Infinity : Number(data.readBigUInt64BE(0));
  if (!Number.isSafeInteger(offset)) throw refuse('a frame of input begins with its offset');
  return { offset, bytes: data.subarray(INPUT_HEAD_BYTES) };
}

function terminalOf({ terminal }: StartMessage): AttachableSpec['terminal'] {
  if (terminal === undefined || terminal === null || terminal === false) return undefined;
  if (terminal === true) return DEFAULT_TERMINAL;
  const { cols = DEFAULT_TERMINAL.columns, rows = DEFAULT_TERMINAL.rows } = terminal;
  return { columns: cols, rows };
}

/** @throws ProcessError `invalid_request` for more text than a guest takes */
export function toProcessSpec(message: StartMessage): AttachableSpec {
  const { command, env, timeout_seconds: timeoutSeconds, cwd } = message;
  const environment = env ?? {};
  if (Buffer.byteLength(command) > GUEST_LIMITS.commandMax) {
    throw refuse(`a command has at most ${GUEST_LIMITS.commandMax} bytes`);
  }
  const bytes = Object.entries(environment).reduce(
    (sum, [name, value]) => sum + Buffer.byteLength(name) + Buffer.byteLength(value) + 2,
    0,
  );
  if (bytes > GUEST_LIMITS.environmentMax) {
    throw refuse(`env has at most ${GUEST_LIMITS.environmentMax} bytes`);
  }
  if (Buffer.byteLength(cwd ?? '') > GUEST_LIMITS.directoryMax) {
    throw refuse(`cwd has at most ${GUEST_LIMITS.directoryMax} bytes`);
  }
  return {
    id: message.process_id,
    command,
    environment,
    directory: cwd ?? undefined,
    terminal: terminalOf(message),
    timeoutMs:
      timeoutSeconds === undefined || timeoutSeconds === null ? undefined : timeoutSeconds * 1000,
  };
}
