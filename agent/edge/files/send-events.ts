import type { ServerResponse } from 'node:http';
import { AppError, toError } from '../../../shared/errors.ts';
import { EDGE_LIMITS } from '../limits.ts';
import { KiB } from '../../../shared/units.ts';
import type { FileWorker } from '../../sandboxes/files/file-worker.ts';
import { failureOf } from '../../sandboxes/files/file-records.ts';
import { joinPath, presentPath } from './present-file.ts';
import { send } from './send-file.ts';
import { type FileEvent, readEvent, readResult } from './worker-answers.ts';

const TOGETHER = 64 * KiB;

const eventText = (kind: string, data: object): string =>
  `event: ${kind}\ndata: ${JSON.stringify(data)}\n\n`;

function present({ kind, isDirectory, path }: FileEvent, root: Buffer): string {
  const data =
    kind === 'ready' || kind === 'overflow'
      ? presentPath(root)
      : { ...presentPath(joinPath(root, path)), directory: isDirectory };
  return eventText(kind, data);
}

/** @throws AppError why no more events come */
async function sendAll(worker: FileWorker, root: Buffer, response: ServerResponse): Promise<never> {
  for (;;) {
    let text = '';
    do {
      const event = await readEvent(worker);
      if (event.kind === 'end') {
        if (text !== '') await send(response, text);
        const why = failureOf(await worker.takeNumber(2));
        throw why ?? new AppError('unavailable', 'the sandbox ended the watch; try again');
      }
      text += present(event, root);
    } while (worker.isReadable && text.length < TOGETHER);
    await send(response, text);
  }
}

/**
 * Answers with the events of a directory until the caller leaves, or there are no more.
 * @param closing aborted when the host leaves, with what the caller is told
 */
export async function sendEvents(
  worker: FileWorker,
  root: Buffer,
  response: ServerResponse,
  closing: AbortSignal,
): Promise<void> {
  // Taken away below: the host's signal outlives all watches, and would keep what they held.
  const leave = (): void => worker.fail(toError(closing.reason));
  closing.addEventListener('abort', leave, { once: true });
  if (closing.aborted) leave();
  try {
    await answerWithEvents(worker, root, response);
  } finally {
    closing.removeEventListener('abort', leave);
  }
}

async function answerWithEvents(
  worker: FileWorker,
  root: Buffer,
  response: ServerResponse,
): Promise<void> {
  await readResult(worker);
  response.writeHead(200, {
    'content-type': 'text/event-stream',
    'cache-control': 'no-store',
    'x-accel-buffering': 'no', // Understood by proxies in front.
  });
  response.flushHeaders();
  // Also for proxies, which drop connections that are silent for long.
  const keepAlive = setInterval(() => response.write(':\n\n'), EDGE_LIMITS.watchKeepAliveMs);
  try {
    await sendAll(worker, root, response);
  } catch (error) {
    if (!(error instanceof AppError)) throw error;
    if (!response.destroyed) {
      response.end(eventText('end', { code: error.code, error: error.message }));
    }
  } finally {
    clearInterval(keepAlive);
  }
}
