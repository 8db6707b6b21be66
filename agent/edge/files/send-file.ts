import { once } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { AppError } from '../../../shared/errors.ts';
import { FILE_REQUEST_HEADERS } from '../../../shared/links/data-protocol.ts';
import { respondWithFile } from '../s3/http/file-response.ts';
import type { ByteRange } from '../s3/protocol/byte-ranges.ts';
import type { FileWorker } from '../../sandboxes/files/file-worker.ts';
import { hasTellableSize, httpFactsOf } from './present-file.ts';
import { readResult, readStat } from './worker-answers.ts';

const gone = (): AppError => new AppError('cancelled', 'the caller is gone');

/** Resolves when more may be written. @throws AppError `cancelled` when the caller is gone */
export async function send(response: ServerResponse, bytes: Buffer | string): Promise<void> {
  if (response.destroyed) throw gone();
  if (response.write(bytes)) return;
  const left = new AbortController();
  const close = (): void => left.abort();
  response.once('close', close);
  try {
    await once(response, 'drain', { signal: left.signal });
  } catch {
    throw gone();
  } finally {
    response.off('close', close);
  }
}

/** Sends a range of the file. The guest sends exactly the range it is asked for, or ends. */
async function sendRange(
  worker: FileWorker,
  response: ServerResponse,
  { start, end }: ByteRange,
): Promise<void> {
  const asked = Buffer.alloc(16);
  asked.writeBigUInt64LE(BigInt(start), 0);
  asked.writeBigUInt64LE(BigInt(end - start + 1), 8);
  await worker.write(asked);
  for (let left = end - start + 1; left > 0;) {
    const piece = await worker.next(left);
    if (piece === undefined)
      throw new AppError('unavailable', 'the file was truncated while it was read; try again');
    left -= piece.length;
    await send(response, piece);
  }
}

/** Answers with a file of the guest, or with the parts of it that are asked for. */
export async function sendFile(
  worker: FileWorker,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  await readResult(worker);
  const stat = await readStat(worker);
  if (!hasTellableSize(stat))
    throw new AppError('file_too_large', 'the file is too long to be read');
  const facts = httpFactsOf(stat);
  const method = request.method === 'HEAD' ? 'HEAD' : 'GET';
  const asked = FILE_REQUEST_HEADERS.map((name) => [name, request.headers[name]?.toString()]);
  const { status, headers, body } = respondWithFile(
    facts,
    method,
    Object.fromEntries(asked) as Record<string, string | undefined>,
  );
  response.writeHead(status, headers);
  for (const part of body) {
    if (typeof part === 'string') await send(response, Buffer.from(part, 'latin1'));
    else await sendRange(worker, response, part);
  }
  response.end();
}
