import type { IncomingMessage } from 'node:http';
import { AppError, toError } from '../../../shared/errors.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { DATA_PATH, type DataRequest } from '../../../shared/links/data-protocol.ts';
import { checkTaken, type PartAuth, PartRequests } from '../../../shared/links/part-requests.ts';
import type { SourceObject } from './http/operation.ts';
import { S3Error } from './protocol/errors.ts';
import { fromRemoteError, OBJECT_HEADER, readObjectInfo } from './remote-errors.ts';

const FREE_SOCKETS_PER_HOST = 8;

export interface RemoteSource {
  readonly hostId: string;
  /** URL of the host's internal port. */
  readonly baseUrl: string;
  readonly accountId: string;
  readonly diskId: string;
  readonly key: string;
  /** The only bytes to send, as a Range header names them. */
  readonly range?: string | undefined;
  /** Aborted when the caller hangs up. */
  readonly signal: AbortSignal;
}

export interface RemoteObject extends SourceObject, Disposable {}

const unreachable = (cause: unknown): S3Error =>
  new S3Error('ServiceUnavailable', 'The host that has the source cannot be reached now.', {
    cause: toError(cause),
  });

/** Passes the bytes on as they come: the other host sends no faster than they are taken. */
async function* readBytes(answer: IncomingMessage, length: number): AsyncGenerator<Buffer> {
  let left = length;
  if (left === 0) return;
  try {
    for await (const chunk of answer as AsyncIterable<Buffer>) {
      left -= chunk.length;
      if (left < 0) throw new Error('the host sent more than the range');
      yield chunk;
    }
  } catch (error) {
    throw unreachable(error);
  }
  if (left > 0) throw unreachable(new Error('the host sent less than the range'));
}

/** Reads objects of disks that other hosts handle, from their data endpoints. */
export class RemoteObjects {
  readonly #requests: PartRequests;

  constructor(auth: PartAuth) {
    this.#requests = new PartRequests(auth, FREE_SOCKETS_PER_HOST);
  }

  /**
   * Opens an object; it stays open until the caller disposes of it.
   * @throws S3Error NoSuchKey, InvalidArgument, ServiceUnavailable; AppError `disk_moved` and
   *   others of the host
   */
  async open(source: RemoteSource): Promise<RemoteObject> {
    const answer = await this.#ask(source);
    try {
      checkTaken(answer);
    } catch (error) {
      throw error instanceof AppError ? fromRemoteError(error) : error;
    }
    const header = answer.headers[OBJECT_HEADER];
    if (typeof header !== 'string') {
      answer.destroy();
      throw unreachable(new Error('the host does not know this kind of request'));
    }
    return {
      info: readObjectInfo(header),
      read: ({ start, end }) => readBytes(answer, Math.max(0, end - start + 1)),
      [Symbol.dispose]: () => {
        answer.destroy();
      },
    };
  }

  close(): void {
    this.#requests.close();
  }

  async #ask(source: RemoteSource): Promise<IncomingMessage> {
    const { hostId, baseUrl, accountId, diskId, key, range, signal } = source;
    const claims: DataRequest = { accountId, diskId, key, operation: 'object' };
    const rangeHeader = range === undefined ? [] : ['Range', range];
    const request = {
      ...{ purpose: 'agent-data' as const, claims, hostId, baseUrl, signal },
      ...{ method: 'GET', target: DATA_PATH },
      rawHeaders: ['Host', new URL(baseUrl).host, ...rangeHeader],
    };
    try {
      return await this.#requests.ask(request, LIMITS.dataHeadersMsMax);
    } catch (error) {
      throw unreachable(error);
    }
  }
}
