import type { IncomingMessage } from 'node:http';
import { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import busboy from 'busboy';
import { LIMITS } from '../../../shared/limits.ts';
import { toError } from '../../../shared/errors.ts';
import type { PostForm } from '../auth/post-policy.ts';
import { S3Error } from '../protocol/errors.ts';

/** Time between checks whether more of a form has arrived. */
const POLL_MS = 5;
const MIME_TYPE = /^multipart\/form-data\b/iu;

/** Whether a request without a key is a form that uploads an object. */
export const isPostForm = ({ method, headers }: IncomingMessage): boolean =>
  method === 'POST' && MIME_TYPE.test(headers['content-type'] ?? '');

const malformed = (why: string, cause?: unknown): S3Error =>
  new S3Error('MalformedPOSTRequest', `The form is malformed: ${why}.`, { cause });

function parserOf(request: IncomingMessage): busboy.Busboy {
  const { formFieldsBytesMax, formFieldsMax } = LIMITS;
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
      if (name.toLowerCase() !== 'file') return reject(malformed('its file must be called file'));
      resolve({ form: { fields, fileName: filename }, file });
    });
    parser.on('error', (error) => reject(malformed(toError(error).message, error)));
    parser.on('close', () => reject(malformed('it has no file')));
  });
}

/**
 * Reads the fields of a form, and puts what was read back, so that the whole request can still be read or
 * passed on.
 * @throws S3Error MalformedPOSTRequest, IncompleteBody
 */
export async function peekForm(request: IncomingMessage): Promise<PostForm> {
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
  for (let seenBytes = 0; !state.isSettled;) {
    const arrived = request.read() as Buffer | null;
    // Back at once: a stream that is seen empty at its end could not be read any more.
    if (arrived !== null) request.unshift(arrived);
    const bytes = arrived?.length ?? 0;
    if (bytes > seenBytes) parser.write(arrived?.subarray(seenBytes));
    else if (request.complete) parser.end();
    else if (request.destroyed) throw new S3Error('IncompleteBody');
    else await sleep(POLL_MS);
    seenBytes = Math.max(seenBytes, bytes);
    await new Promise(setImmediate);
    if (seenBytes > LIMITS.formHeadBytesMax && !state.isSettled)
      throw malformed('its fields are too long');
  }
  return collected;
}

/** The file of a form whose bytes these are. Fields after it are ignored, as in S3. */
export async function* readFile(
  request: IncomingMessage,
  bytes: AsyncIterable<Buffer>,
): AsyncGenerator<Buffer> {
  const parser = parserOf(request);
  const collected = collect(parser);
  const source = Readable.from(bytes);
  source.on('error', (error) => parser.destroy(error));
  source.pipe(parser);
  const { file } = await collected;
  try {
    yield* file as AsyncIterable<Buffer>;
  } catch (error) {
    throw error instanceof S3Error ? error : malformed(toError(error).message, error);
  }
}
