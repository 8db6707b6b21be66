import { AppError } from '../errors.ts';
import { SCHEMA_LIMITS } from '../schemas/limits.ts';

/** Headers that delimit or route a message, or shape its answer: only the proxy sets these. */
const RESERVED: ReadonlySet<string> = new Set([
  'connection',
  'content-length',
  'expect',
  'host',
  'http2-settings',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authentication-info',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]);
/** RFC 9110, 5.6.2. */
const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/u;
/** RFC 9110, 5.5, without obs-text: visible ASCII with blanks between. */
const VALUE = /^[\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?$/u;

/**
 * Checks the headers that a rule adds. Messages never quote a value.
 * @throws AppError `bad_request`
 */
export function checkHeaders(headers: Readonly<Record<string, string>>, where: string): void {
  const seen = new Set<string>();
  for (const [name, value] of Object.entries(headers)) {
    const shown = JSON.stringify(name.slice(0, SCHEMA_LIMITS.networkHeaderNameLengthMax));
    const refuse = (why: string): AppError =>
      new AppError('bad_request', `${where}: ${shown} ${why}`);
    if (name.length > SCHEMA_LIMITS.networkHeaderNameLengthMax || !TOKEN.test(name)) {
      throw refuse('is not the name of a header');
    }
    const lower = name.toLowerCase();
    if (RESERVED.has(lower)) throw refuse('cannot be set by a rule');
    if (seen.has(lower)) throw refuse('is given twice');
    if (!VALUE.test(value)) throw refuse('has a value that no header can have');
    seen.add(lower);
  }
}

/** @throws AppError `bad_request` */
export function checkForwardUrl(text: string, where: string): string {
  if (!URL.canParse(text)) {
    throw new AppError('bad_request', `${where}: this URL names no host that can exist`);
  }
  const url = new URL(text);
  if (url.protocol !== 'https:') throw new AppError('bad_request', `${where}: give an https URL`);
  if (url.username !== '' || url.password !== '') {
    throw new AppError('bad_request', `${where}: give credentials as headers, not in the URL`);
  }
  if (url.hash !== '') throw new AppError('bad_request', `${where}: a URL with a fragment`);
  // The form that is kept is no longer than what a caller may give: jobs are checked alike.
  if (url.href.length > SCHEMA_LIMITS.networkForwardUrlLengthMax) {
    const most = SCHEMA_LIMITS.networkForwardUrlLengthMax;
    throw new AppError(
      'bad_request',
      `${where}: longer than ${most} characters in its normal form`,
    );
  }
  return url.href;
}
