import { AppError } from '../../../shared/errors.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';

/** Bytes from percent-encoded text; other characters stand for their UTF-8. */
function decode(text: string): Buffer {
  const bytes = Buffer.from(text);
  let length = 0;
  for (let at = 0; at < bytes.length; at += 1) {
    const hex = bytes[at] === 0x25 ? bytes.toString('latin1', at + 1, at + 3) : '';
    const isEncoded = /^[0-9A-Fa-f]{2}$/u.test(hex);
    bytes[length] = isEncoded ? Number.parseInt(hex, 16) : Number(bytes[at]);
    length += 1;
    if (isEncoded) at += 2;
  }
  return bytes.subarray(0, length);
}

function checkPath(bytes: Buffer, name: string): Buffer {
  const bad = (reason: string): AppError => new AppError('bad_request', `${name} ${reason}`);
  if (bytes[0] !== 0x2f) throw bad('is not absolute: it must begin with a slash');
  if (bytes.includes(0)) throw bad('contains a NUL byte');
  if (bytes.length > SCHEMA_LIMITS.filePathBytesMax) {
    throw bad(`is longer than ${SCHEMA_LIMITS.filePathBytesMax} bytes`);
  }
  return bytes;
}

/**
 * The path in a query, whose bytes need not be UTF-8.
 * @param search the query as it came
 * @throws AppError `bad_request`
 */
export function pathOfQuery(search: string): Buffer {
  const values = search.split('&').filter((pair) => pair.startsWith('path='));
  if (values.length !== 1) throw new AppError('bad_request', 'give one path in the query');
  const [value = ''] = values;
  return checkPath(decode(value.slice('path='.length).replaceAll('+', ' ')), 'path');
}

/**
 * A path in a body: as text, or percent-encoded.
 * @throws AppError `bad_request` unless it is one of them, and an absolute path
 */
export function pathOfBody(
  name: string,
  text: string | undefined,
  encoded: string | undefined,
): Buffer {
  if ((text === undefined) === (encoded === undefined)) {
    throw new AppError('bad_request', `give either ${name} or ${name}_encoded`);
  }
  return checkPath(text === undefined ? decode(encoded ?? '') : Buffer.from(text), name);
}
