import { pino, type Logger } from 'pino';
import { errnoOf } from './errors.ts';

export type { Logger } from 'pino';

const FLUSH_EVERY_MS = 200;
/** Of events that cannot be written now. */
const HELD_BYTES_MAX = 16 * 1024 ** 2;

/** By these fields only: Redis errors carry the arguments of their command, secrets among them. */
function describeError(thrown: unknown): unknown {
  if (!(thrown instanceof Error)) return thrown;
  const { name, message, stack, cause } = thrown;
  return { type: name, message, code: errnoOf(thrown), stack, cause: describeError(cause) };
}

/**
 * JSON log on stdout, written in batches so that logging never holds up a request. Fields that
 * could hold a secret are cut out.
 */
export function createLogger(service: string, base: Record<string, string> = {}): Logger {
  const destination = pino.destination({
    dest: 1,
    sync: false,
    minLength: 4096,
    maxLength: HELD_BYTES_MAX,
    periodicFlush: FLUSH_EVERY_MS,
  });
  // A log whose file system is full is no reason to end: what does not fit is dropped.
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
