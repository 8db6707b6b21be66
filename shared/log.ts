import { pino, type Logger } from 'pino';

export type { Logger } from 'pino';

const FLUSH_EVERY_MS = 200;

/**
 * JSON log on stdout, written in batches so that logging never holds up a request. Fields that
 * could hold a secret are cut out.
 */
export function createLogger(service: string, base: Record<string, string> = {}): Logger {
  return pino(
    {
      level: process.env['LOG_LEVEL'] ?? 'info',
      base: { service, ...base },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      redact: ['authorization', 'token', 'command'],
    },
    pino.destination({ dest: 1, sync: false, minLength: 4096, periodicFlush: FLUSH_EVERY_MS }),
  );
}
