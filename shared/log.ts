import { stat } from 'node:fs/promises';
import { type LevelWithSilent, pino, type Logger } from 'pino';
import { runInBackground } from './background.ts';
import { errnoOf } from './errors.ts';
import { traceFields } from './spans.ts';
import { KiB, MiB } from './units.ts';

export type { Logger } from 'pino';

const FLUSH_EVERY_MS = 200;
/** A write takes as long for one line as for a hundred. */
const BATCH_BYTES = 32 * KiB;
const ROTATION_LOOK_MS = 1_000;
/** How much to buffer while stdout cannot be written; more is dropped. */
const HELD_BYTES_MAX = 16 * MiB;

/**
 * Logs these fields only: Redis errors also carry the arguments of their command, secrets included.
 */
function describeError(thrown: unknown): unknown {
  if (!(thrown instanceof Error)) return thrown;
  const { name, message, stack, cause } = thrown;
  return { type: name, message, code: errnoOf(thrown), stack, cause: describeError(cause) };
}

type Destination = ReturnType<typeof pino.destination>;

/** Goes on in a new file when the log's was renamed or removed; threads get no signals. */
function followRotation(destination: Destination, path: string): void {
  let inode: number | undefined;
  const look = async (): Promise<void> => {
    const now = await stat(path).then(
      ({ ino }) => ino,
      () => undefined,
    );
    if (inode !== undefined && now !== inode) destination.reopen();
    inode = now ?? inode;
  };
  setInterval(() => runInBackground('log.rotate', look), ROTATION_LOOK_MS).unref();
}

/** The events that are logged, and the place. */
export interface LogSettings {
  readonly level: LevelWithSilent;
  /** A file that the log is appended to; undefined: standard output. */
  readonly path: string | undefined;
}

/**
 * A JSON log, written in batches so that logging never delays a request. Fields that could hold a
 * secret are removed.
 */
export function createLogger(
  service: string,
  base: Record<string, string>,
  { level, path }: LogSettings = { level: 'info', path: undefined },
): Logger {
  const destination = pino.destination({
    dest: path ?? 1,
    append: true,
    sync: false,
    minLength: BATCH_BYTES,
    maxWrite: 2 * BATCH_BYTES,
    maxLength: HELD_BYTES_MAX,
    periodicFlush: FLUSH_EVERY_MS,
    contentMode: 'buffer',
  });
  // Given texts, it would copy the batch so far for each line to count its bytes.
  const write = destination.write.bind(destination) as unknown as (line: Buffer) => boolean;
  destination.write = (line) => write(Buffer.from(line));
  // A full file system below the log must not end the process: what does not fit is dropped.
  destination.on('error', () => undefined);
  if (path !== undefined) followRotation(destination, path);
  return pino(
    {
      level,
      base: { service, ...base },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      serializers: { err: describeError },
      redact: ['authorization', 'token', 'command'],
      mixin: () => ({ ...traceFields() }),
    },
    destination,
  );
}
