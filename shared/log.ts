import { pino, type Logger } from 'pino';
import { errnoOf } from './errors.ts';
import { MiB } from './units.ts';

export type { Logger } from 'pino';

const FLUSH_EVERY_MS = 200;
/** How much to buffer while stdout cannot be written; more is dropped. */
const HELD_BYTES_MAX = 16 * MiB;

/** Logs these fields only: Redis errors also carry the arguments of their command, secrets included. */
function describeError(thrown: unknown): unknown {
  if (!(thrown instanceof Error)) return thrown;
  const { name, message, stack, cause } = thrown;
  return { type: name, message, code: errnoOf(thrown), stack, cause: describeError(cause) };
}

/**
 * A JSON log on stdout, written in batches so that logging never delays a request. Fields that could
 * hold a secret are removed.
 */
export function createLogger(service: string, base: Record<string, string> = {}): Logger {
  const destination = pino.destination({
    dest: 1,
    sync: false,
    minLength: 4096,
    maxLength: HELD_BYTES_MAX,
    periodicFlush: FLUSH_EVERY_MS,
  });
  // A full file system below the log must not end the process: what does not fit is dropped.
  destination.on('error', () => undefined);
  return pino(
    {
      level: process.env['LOG_LEVEL'] ?? 'info',
      base: { service, ...base },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      serializers: { err: describeError },
      redact: ['authorization', 'token', 'command'],
    },
    destination,
  );
}
