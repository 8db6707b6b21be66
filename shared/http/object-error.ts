import type { Refusal } from './strict-http.ts';

const CODES = { bad_request: 'InvalidRequest', no_capacity: 'SlowDown' } as const;

/**
 * The body of an answer that control gives in an agent's place, in the form of S3's errors.
 * @param message plain text without markup
 */
export const renderObjectError = (code: string, message: string): string =>
  `<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>${code}</Code><Message>${message}</Message></Error>
`;

/** Refuses a request of the object API that no handler sees; control and agents answer alike. */
export const renderObjectRefusal = (code: keyof typeof CODES, problem: string): Refusal => ({
  contentType: 'application/xml',
  body: renderObjectError(CODES[code], problem),
});
