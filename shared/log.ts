import { pino, type Logger } from 'pino';

export type { Logger } from 'pino';

/**
 * JSON log on stdout. Written without blocking the event loop; fields that could hold a secret are
 * cut out wherever they stand.
 */
export function createLogger(service: string, base: Record<string, string> = {}): Logger {
  return pino(
    {
      level: process.env['LOG_LEVEL'] ?? 'info',
      base: { service, ...base },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      redact: ['authorization', '*.authorization', 'token', '*.token', 'command', '*.command'],
    },
    pino.destination({ dest: 1, sync: false, minLength: 0 }),
  );
}
