import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import { AppError } from '../../../shared/errors.ts';
import type { FileOperation, FilesAnswer } from '../../../shared/links/files-protocol.ts';
import { KiB } from '../../../shared/units.ts';
import { checkPreconditions } from '../s3/protocol/preconditions.ts';
import type { FileStat } from '../../sandboxes/files/file-records.ts';
import type { FileWorker } from '../../sandboxes/files/file-worker.ts';
import type { SandboxFiles } from '../../sandboxes/files/sandbox-files.ts';
import { httpFactsOf, presentFile } from './present-file.ts';
import { readResult, readStat } from './worker-answers.ts';

const LENGTH_BYTES = 4;
/** With its length it fills one frame to the guest. */
const PIECE_BYTES = 64 * KiB - LENGTH_BYTES;
/** Tells that all has come: without it the guest drops the upload. */
const END = Buffer.alloc(LENGTH_BYTES);

/** Conditions of a write; If-Modified-Since is of reads alone (RFC 9110, section 13.1.3). */
const CONDITIONS = ['if-match', 'if-none-match', 'if-unmodified-since'] as const;

/** @param found what is there now, if anything @throws AppError `precondition_failed` */
function checkConditions(headers: IncomingHttpHeaders, found: FileStat | undefined): void {
  const conditions = Object.fromEntries(CONDITIONS.map((name) => [name, headers[name]]));
  const holds =
    found === undefined
      ? headers['if-match'] === undefined
      : checkPreconditions(conditions, httpFactsOf(found)) === 'proceed';
  if (!holds) throw new AppError('precondition_failed', 'a condition of the request does not hold');
}

/**
 * The next bytes of the body; undefined at its end, and when the guest has an answer already. (A
 * loop over the request would wait for bytes first, and close the connection when it is left.)
 */
async function nextChunk(
  request: IncomingMessage,
  worker: FileWorker,
): Promise<Buffer | undefined> {
  while (!worker.isReadable) {
    const chunk = request.read() as Buffer | null;
    if (chunk !== null) return chunk;
    if (request.readableEnded) return undefined;
    if (request.destroyed) throw new AppError('cancelled', 'the caller is gone');
    await changeOf(request, worker);
  }
  return undefined;
}

async function changeOf(request: IncomingMessage, worker: FileWorker): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const events = ['readable', 'end', 'close'] as const;
  for (const event of events) request.once(event, resolve);
  worker.tell(resolve);
  await promise;
  for (const event of events) request.off(event, resolve);
}

/** Passes the body on at the guest's speed, until the guest has an answer. */
async function passOn(request: IncomingMessage, worker: FileWorker): Promise<void> {
  for (;;) {
    const chunk = await nextChunk(request, worker);
    if (chunk === undefined) break;
    for (let at = 0; at < chunk.length; at += PIECE_BYTES) {
      const piece = chunk.subarray(at, at + PIECE_BYTES);
      const length = Buffer.alloc(LENGTH_BYTES);
      length.writeUInt32LE(piece.length);
      await worker.write(Buffer.concat([length, piece]));
    }
  }
  if (!worker.isReadable) await worker.write(END);
}

/** Writes the request's body to a file of the guest. */
export async function receiveFile(
  files: SandboxFiles,
  operation: FileOperation,
  request: IncomingMessage,
): Promise<FilesAnswer> {
  const { headers } = request;
  const exclusive = headers['if-none-match']?.trim() === '*';
  const unchanged = CONDITIONS.some((name) => headers[name] !== undefined);
  await using worker = await files.begin(operation, { exclusive, unchanged });
  request.on('error', () => worker.fail(new AppError('cancelled', 'the caller is gone')));
  await readResult(worker);
  const exists = (await worker.takeNumber(1)) !== 0;
  checkConditions(headers, exists ? await readStat(worker) : undefined);
  await passOn(request, worker);
  try {
    await readResult(worker, unchanged);
  } catch (error) {
    // Another writer created it in between.
    const isThere = exclusive && error instanceof AppError && error.code === 'file_exists';
    if (!isThere) throw error;
    throw new AppError('precondition_failed', 'the file is there by now', { cause: error });
  }
  const path = Buffer.from(operation.path, 'base64url');
  return { file: presentFile(path, await readStat(worker)), isNew: !exists };
}
