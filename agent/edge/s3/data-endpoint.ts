import type { IncomingMessage, ServerResponse } from 'node:http';
import { extname } from 'node:path';
import mime from 'mime-types';
import {
  type DataRequest,
  FILE_REQUEST_HEADERS,
  readDataRequest,
} from '../../../shared/links/data-protocol.ts';
import { AppError } from '../../../shared/errors.ts';
import { FairShares, type Permit } from '../../../shared/fair-shares.ts';
import { newJobId as newClientId, newRequestId } from '../../../shared/ids.ts';
import type { Logger } from '../../../shared/log.ts';
import type { Claims } from '../../../shared/links/single-use-token.ts';
import { servePartInSpan } from '../../../shared/links/traced-part-request.ts';
import { RequestsUnderWay } from '../../system/queues/requests-under-way.ts';
import { answerFailure } from '../../system/answer-failure.ts';
import { onBehalfOf } from '../../disks/disk-threads.ts';
import { openDiskFile } from '../../disks/disk-file.ts';
import type { DiskRegistry } from '../../disks/disk-registry.ts';
import { type FileFacts, factsOf, respondWithFile } from './http/file-response.ts';
import { quoted } from './http/operation.ts';
import { objectInfoHeaders, toRemoteError } from './remote-errors.ts';
import { S3Error } from './protocol/errors.ts';
import { readKey } from './store/keys.ts';
import { openObject } from './store/object-info.ts';
import { asS3 } from './store/store-errors.ts';
import type { RequestHeaders } from './protocol/preconditions.ts';
import { sendBody } from './http/send-body.ts';

export interface DataEndpointOptions {
  readonly disks: DiskRegistry;
  /** The most downloads at the same time. */
  readonly downloadsMax: number;
  readonly log: Logger;
}

const typeOf = (key: string): string =>
  mime.contentType(extname(key)) || 'application/octet-stream';

function fileHeaders(request: IncomingMessage): RequestHeaders {
  return Object.fromEntries(
    FILE_REQUEST_HEADERS.map((name) => [name, request.headers[name]?.toString()]),
  );
}

interface OpenFile {
  readonly fd: number;
  readonly facts: FileFacts;
  readonly headers: Readonly<Record<string, string>>;
}

async function openAsFile(
  contents: string,
  key: string,
  opened: AsyncDisposableStack,
): Promise<OpenFile> {
  const { fd, stats } = opened.use(await openDiskFile(contents, key));
  return { fd, facts: factsOf(stats, typeOf(key)), headers: {} };
}

async function openAsObject(
  contents: string,
  key: string,
  opened: AsyncDisposableStack,
): Promise<OpenFile> {
  try {
    const { fd, close, ...info } = await asS3(() => openObject(contents, readKey(key)));
    opened.defer(close);
    const { sizeBytes, modifiedAt, contentType } = info;
    const facts = { sizeBytes, etag: quoted(info.etag), modifiedAt, contentType };
    return { fd, facts, headers: objectInfoHeaders(info) };
  } catch (error) {
    throw error instanceof S3Error ? toRemoteError(error) : error;
  }
}

const SPAN = { name: 'disk download', kind: 'server' } as const;

/**
 * Serves files of this host's disks to control nodes, and sources of copies to other agents
 * (shared/links/data-protocol.ts).
 */
export class DataEndpoint {
  readonly #options: DataEndpointOptions;
  readonly #underWay = new RequestsUnderWay();
  readonly #permits: FairShares;
  #isClosed = false;

  constructor(options: DataEndpointOptions) {
    this.#options = options;
    this.#permits = new FairShares(options.downloadsMax);
  }

  /**
   * Never throws: a failure is answered, or the connection is broken off.
   * @param claims from the token of the control node or agent that asks
   */
  handle(request: IncomingMessage, response: ServerResponse, claims: Claims): void {
    const answer = (): Promise<void> => this.#answer(request, response, claims);
    this.#underWay.add(servePartInSpan(claims, SPAN, answer));
  }

  /** Refuses new downloads; settles when those under way have ended. */
  async drain(): Promise<void> {
    this.#isClosed = true;
    await this.#underWay.ended();
  }

  async #answer(request: IncomingMessage, response: ServerResponse, claims: Claims): Promise<void> {
    const { log } = this.#options;
    const requestId = request.headers['x-request-id']?.toString() ?? newRequestId();
    const notes: Record<string, unknown> = { requestId, bytesSent: 0 };
    try {
      const wanted = this.#admit(request, claims);
      notes['diskId'] = wanted.diskId;
      using _permit = this.#takePermit(wanted);
      const ended = new AbortController();
      response.once('close', () => ended.abort(new AppError('unavailable', 'the caller is gone')));
      await onBehalfOf(wanted.accountId, ended.signal, () =>
        this.#send(wanted, request, response, notes),
      );
      notes['completed'] = true;
    } catch (thrown) {
      Object.assign(notes, { completed: false }, answerFailure(response, thrown));
    }
    log.info({ ...notes, status: response.statusCode }, 'data:answered');
  }

  /** @throws AppError `forbidden`, `unavailable` */
  #admit({ method }: IncomingMessage, claims: Claims): DataRequest {
    const wanted = readDataRequest(claims);
    if (method !== 'GET' && method !== 'HEAD') {
      throw new AppError('forbidden', 'the data endpoint is only for reading');
    }
    if (this.#isClosed) throw new AppError('unavailable', 'the host is shutting down; try again');
    return wanted;
  }

  /** @throws AppError `no_capacity`, `rate_limited` */
  #takePermit({ accountId, diskId, key }: DataRequest): Permit {
    const permit = this.#permits.take([`account ${accountId}`, `link ${diskId} ${key}`]);
    if (permit !== undefined) return permit;
    if (this.#permits.isFull) {
      throw new AppError('no_capacity', 'too many downloads run on the host; try again');
    }
    throw new AppError('rate_limited', 'too many downloads of this file or account; try again');
  }

  async #send(
    { accountId, diskId, key, operation }: DataRequest,
    request: IncomingMessage,
    response: ServerResponse,
    notes: Record<string, unknown>,
  ): Promise<void> {
    const disk = this.#options.disks.get({ accountId, diskId });
    let revoked: AppError | undefined;
    const claim = await disk.claim(newClientId(), (reason) => {
      revoked = reason;
      response.destroy();
    });
    try {
      // Closed before the claim is released: an open file keeps the disk from being unmounted.
      await using opened = new AsyncDisposableStack();
      const open = operation === 'object' ? openAsObject : openAsFile;
      const { fd, facts, headers: own } = await open(claim.path, key, opened);
      if (revoked !== undefined) throw revoked;
      const method = request.method === 'HEAD' ? 'HEAD' : 'GET';
      const { status, headers, body } = respondWithFile(facts, method, fileHeaders(request));
      response.writeHead(status, { ...headers, ...own });
      await sendBody({ fd }, body, response, (bytes) => {
        notes['bytesSent'] = Number(notes['bytesSent']) + bytes;
      });
    } finally {
      claim.release();
    }
    response.end();
  }
}
