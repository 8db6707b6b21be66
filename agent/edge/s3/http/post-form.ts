import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import type { Readable } from 'node:stream';
import { setImmediate } from 'node:timers/promises';
import busboy from 'busboy';
import { toError } from '../../../../shared/errors.ts';
import { FairShares } from '../../../../shared/fair-shares.ts';
import { addressParties } from '../../../../shared/http/address-key.ts';
import { EDGE_LIMITS } from '../../limits.ts';
import type { PostForm } from '../auth/post-policy.ts';
import { S3Error } from '../protocol/errors.ts';

const MIME_TYPE = /^multipart\/form-data\b/iu;

/** Whether the body of a request is a form. */
export const isPostForm = ({ headers }: IncomingMessage): boolean =>
  MIME_TYPE.test(headers['content-type'] ?? '');

const malformed = (why: string, cause?: unknown): S3Error =>
  new S3Error('MalformedPOSTRequest', `The form is malformed: ${why}.`, { cause });

function parserOf(request: IncomingMessage): busboy.Busboy {
  const { formFieldsBytesMax, formFieldsMax } = EDGE_LIMITS;
  const limits = {
    fieldSize: formFieldsBytesMax,
    fields: formFieldsMax,
    files: 1,
    fieldNameSize: 200,
  };
  try {
    return busboy({ headers: request.headers, limits, defParamCharset: 'utf8' });
  } catch (error) {
    throw malformed(toError(error).message, error);
  }
}

/** Collects fields until the file begins; settles then, or fails. */
function collect(parser: busboy.Busboy): Promise<{ form: PostForm; file: Readable }> {
  const fields = new Map<string, string>();
  let found: Readable | undefined;
  return new Promise((resolve, reject) => {
    parser.on('field', (name, value, { nameTruncated, valueTruncated }) => {
      const lower = name.toLowerCase();
      if (nameTruncated || valueTruncated) return reject(malformed('a field is too long'));
      if (fields.has(lower)) return reject(malformed(`the field ${lower} appears twice`));
      fields.set(lower, value);
    });
    parser.on('fieldsLimit', () => reject(malformed('it has too many fields')));
    parser.on('file', (name, file, { filename = '' }) => {
      file.on('error', () => undefined); // A reader of the file gets the error too.
      found = file;
      if (name.toLowerCase() !== 'file') return reject(malformed('its file must be called file'));
      resolve({ form: { fields, fileName: filename }, file });
    });
    parser.on('error', (error) => {
      const failure = malformed(toError(error).message, error);
      reject(failure);
      // The parser leaves the file as it is.
      found?.destroy(failure);
    });
    parser.on('close', () => reject(malformed('it has no file')));
  });
}

/**
 * Waits until more of the request has arrived, or its end.
 * @throws S3Error MalformedPOSTRequest after the deadline, IncompleteBody
 */
async function arrival(request: IncomingMessage, deadline: AbortSignal): Promise<void> {
  if (request.destroyed) throw new S3Error('IncompleteBody');
  const settled = new AbortController();
  const signal = AbortSignal.any([deadline, settled.signal]);
  try {
    await Promise.race([
      once(request, 'readable', { signal }),
      once(request, 'close', { signal }).then(() => {
        throw new Error('the client has gone');
      }),
    ]);
  } catch (cause) {
    if (deadline.aborted) throw malformed('its fields did not come in time', cause);
    throw new S3Error('IncompleteBody', undefined, { cause });
  } finally {
    settled.abort();
  }
}

/**
 * Reads the fields of a form, and puts what was read back, so that the whole request can still be
 * read or passed on. Until then nothing waits in the request, which tells `StallClock` that it
 * is the client's turn.
 * @param headMsMax how long the fields may take
 * @throws S3Error MalformedPOSTRequest, IncompleteBody
 */
export async function peekForm(
  request: IncomingMessage,
  headMsMax: number = EDGE_LIMITS.formHeadMsMax,
): Promise<PostForm> {
  const parser = parserOf(request);
  const state = { isSettled: false };
  const collected = collect(parser)
    .then(({ form, file }) => {
      file.resume();
      return form;
    })
    .finally(() => {
      state.isSettled = true;
    });
  collected.catch(() => undefined); // The last line throws it.
  const deadline = AbortSignal.timeout(headMsMax);
  const taken: Buffer[] = [];
  const putBack = (): void => {
    if (taken.length > 0) request.unshift(Buffer.concat(taken.splice(0)));
  };
  try {
    for (let seenBytes = 0, isWhole = false; !state.isSettled && !isWhole;) {
      const arrived = request.read() as Buffer | null;
      isWhole = request.complete;
      if (arrived !== null) taken.push(arrived);
      // At once: a stream that is seen empty at its end could not be read any more.
      if (isWhole) putBack();
      if (arrived !== null) parser.write(arrived);
      else if (!isWhole) await arrival(request, deadline);
      if (isWhole) parser.end();
      await setImmediate();
      seenBytes += arrived?.length ?? 0;
      if (seenBytes > EDGE_LIMITS.formHeadBytesMax && !state.isSettled)
        throw malformed('its fields are too long');
    }
  } finally {
    putBack();
  }
  return collected;
}

/**
 * Reads the fields of forms, which may carry the credentials, so that nobody knows before whose
 * request it is. They have permits, fewer than the port has connections, of which an address that
 * is alone may hold half.
 */
export class FormHeads {
  readonly #permits = new FairShares(EDGE_LIMITS.formHeadsPerHostMax);
  readonly #proxies: readonly string[];

  /** @param proxies addresses of proxies, which any number of clients share */
  constructor(proxies: readonly string[]) {
    this.#proxies = proxies;
  }

  /** See {@link peekForm}. @throws S3Error SlowDown */
  async peek(request: IncomingMessage, address: string): Promise<PostForm> {
    using permit = this.#permits.take(addressParties(this.#proxies, address));
    if (permit === undefined) throw new S3Error('SlowDown');
    return await peekForm(request);
  }
}

/** Emitted by a file when its parser has got all bytes of the form. */
const FED = 'berth:fed';
const EVENTS = ['readable', 'end', 'close', 'error', FED];
const noop = (): void => undefined;

/** Feeds a parser. Settles once it has parsed everything; its file and its errors say what came. */
async function feed(parser: busboy.Busboy, bytes: AsyncIterable<Buffer>): Promise<void> {
  try {
    for await (const chunk of bytes) {
      await new Promise((resolve) => {
        parser.write(chunk, resolve);
      });
    }
    parser.end();
  } catch (error) {
    parser.destroy(toError(error));
  }
}

/**
 * The file of a form whose bytes these are. Fields after it are ignored, as in S3.
 * @throws S3Error MalformedPOSTRequest when the file does not end, and what `bytes` throws
 */
export async function* readFile(
  request: IncomingMessage,
  bytes: AsyncIterable<Buffer>,
): AsyncGenerator<Buffer> {
  const parser = parserOf(request);
  const collected = collect(parser);
  let isFed = false;
  const fed = feed(parser, bytes).then(() => {
    isFed = true;
  });
  const { file } = await collected;
  fed.then(() => file.emit(FED), noop);
  try {
    while (!file.readableEnded) {
      const chunk = file.read() as Buffer | null;
      if (chunk !== null) yield chunk;
      else if (isFed) await refuseUnlessEnded(file);
      else await nextOf(file);
    }
  } catch (error) {
    throw error instanceof S3Error ? error : malformed(toError(error).message, error);
  } finally {
    file.destroy();
  }
}

/** Settles when more of a file can be read, or none ever. @throws the error that ended it */
async function nextOf(file: Readable): Promise<void> {
  if (file.errored === null) {
    await new Promise<void>((resolve) => {
      const settle = (): void => {
        for (const event of EVENTS) file.off(event, settle);
        resolve();
      };
      for (const event of EVENTS) file.on(event, settle);
    });
  }
  if (file.errored !== null) throw file.errored;
}

/** Some malformed forms begin a file and never end it, although the parser took all of them. */
async function refuseUnlessEnded(file: Readable): Promise<void> {
  await setImmediate(); // A file that has ended says so in the next turn.
  if (file.errored !== null) throw file.errored;
  if (!file.readableEnded && file.readableLength === 0) throw malformed('its file does not end');
}
