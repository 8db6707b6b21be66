import Type from 'typebox';
import { AppError } from '../../shared/errors.ts';
import { parseJson } from '../../shared/json.ts';
import { LIMITS } from '../../shared/limits.ts';
import { compile, taggedUnion } from '../../shared/validate.ts';
import { GUEST_LIMITS } from '../guest-link/guest-protocol.ts';
import { SessionError } from '../sandboxes/processes/session-error.ts';
import type { SessionProcessSpec } from '../sandboxes/processes/sandbox-processes.ts';

/* What clients say in text frames (docs/sessions.md). */

const NO_NUL = '^[^\\0]*$';
const VARIABLE_NAME = '^[^=\\0]+$';
const processId = Type.String({ minLength: 1, maxLength: 64 });
const windowEdge = Type.Integer({ minimum: 1, maximum: 65_535 });
const DEFAULT_TERMINAL = { columns: 80, rows: 24 } as const;

const Start = Type.Object({
  type: Type.Literal('start'),
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
      Type.Integer({ minimum: 1, maximum: LIMITS.sandboxExecTimeoutSecondsMax }),
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

const checkFirst = compile(FirstMessage);

const refuse = (message: string, cause?: unknown): SessionError =>
  new SessionError('invalid_request', message, { cause });

function parse(text: Buffer): unknown {
  try {
    return parseJson(text.toString('utf8'));
  } catch (error) {
    throw refuse('the message is not valid JSON', error);
  }
}

/** The message that chooses what a connection is for. @throws SessionError `invalid_request` */
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

/** The only text that may follow. @throws SessionError `invalid_request` for any other */
export function checkCloseStdin(data: Buffer): void {
  const value = parse(data);
  const type: unknown =
    typeof value === 'object' && value !== null ? Reflect.get(value, 'type') : undefined;
  if (type !== 'close_stdin') {
    throw refuse('after the first message, only close_stdin and binary frames of input may follow');
  }
}

function terminalOf({ terminal }: StartMessage): SessionProcessSpec['terminal'] {
  if (terminal === undefined || terminal === null || terminal === false) return undefined;
  if (terminal === true) return DEFAULT_TERMINAL;
  const { cols = DEFAULT_TERMINAL.columns, rows = DEFAULT_TERMINAL.rows } = terminal;
  return { columns: cols, rows };
}

/** @throws SessionError `invalid_request` for more text than a guest takes */
export function toProcessSpec(message: StartMessage): SessionProcessSpec {
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
    command,
    environment,
    directory: cwd ?? undefined,
    terminal: terminalOf(message),
    timeoutMs:
      timeoutSeconds === undefined || timeoutSeconds === null ? undefined : timeoutSeconds * 1000,
  };
}
