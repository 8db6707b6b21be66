import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import { AppError, toError } from '../../shared/errors.ts';
import { FairShares, type Permit } from '../../shared/fair-shares.ts';
import { framingOf } from '../../shared/http/http-framing.ts';
import { awaitAnswer, whenClosed } from '../../shared/http/send-request.ts';
import { REGION_LIMITS } from './limits.ts';
import { FILE_REQUEST_HEADERS } from '../../shared/links/data-protocol.ts';
import { FILES_PATH, filesClaims, type FilesRequest } from '../../shared/links/files-protocol.ts';
import { checkTaken, type PartAuth, PartRequests } from '../../shared/links/part-requests.ts';
import type { Host } from './known-hosts.ts';

const FREE_SOCKETS_PER_HOST = 16;

/** A request for files of a sandbox, to be sent to its host. */
export interface FilesCall extends FilesRequest {
  readonly host: Host;
  /** HEAD asks for no content. */
  readonly method: string;
  /** The caller's; only those that concern ranges and preconditions are passed on. */
  readonly headers: IncomingHttpHeaders;
  /** The content to write to the file. */
  readonly upload?: IncomingMessage | undefined;
  readonly requestId: string;
  /** Aborted when the caller hangs up. */
  readonly signal: AbortSignal;
}

/** This node's way to the files of sandboxes. */
export class FilesProxy {
  readonly #requests: PartRequests;
  readonly #transfers = new FairShares(REGION_LIMITS.filesPerNodeMax);
  readonly #watches = new FairShares(REGION_LIMITS.watchesPerNodeMax);

  constructor(auth: PartAuth) {
    this.#requests = new PartRequests(auth, FREE_SOCKETS_PER_HOST);
  }

  /**
   * The host's answer, its body not read yet: whoever gets it reads or destroys it.
   * @throws AppError what the host says; `unavailable` when it cannot be reached, `outcome_unknown`
   *   when something may have been changed by then, `cancelled`, `no_capacity`, `rate_limited`
   */
  async open(call: FilesCall): Promise<IncomingMessage> {
    const permit = this.#takePermit(call);
    try {
      const answer = await this.#send(call).catch((error: unknown) => {
        throw toFailure(call, toError(error));
      });
      checkTaken(answer);
      whenClosed(answer, () => permit[Symbol.dispose]());
      return answer;
    } catch (error) {
      permit[Symbol.dispose]();
      throw error;
    }
  }

  close(): void {
    this.#requests.close();
  }

  #takePermit({ accountId, sandboxId, operation }: FilesCall): Permit {
    const permits = operation.type === 'watch' ? this.#watches : this.#transfers;
    const permit = permits.take([`account ${accountId}`, `sandbox ${sandboxId}`]);
    if (permit !== undefined) return permit;
    if (permits.isFull) throw new AppError('no_capacity', 'too many files are read; try again');
    throw new AppError('rate_limited', 'the account reads or writes too many files; try again');
  }

  async #send(call: FilesCall): Promise<IncomingMessage> {
    const { host, method, headers, upload, requestId, signal } = call;
    const { internalUrl: baseUrl, hostId } = host;
    const own = ['Host', new URL(baseUrl).host, 'X-Request-Id', requestId];
    const conditions = FILE_REQUEST_HEADERS.flatMap((name) => {
      const value = headers[name];
      return typeof value === 'string' ? [name, value] : [];
    });
    const request = this.#requests.begin({
      ...{ purpose: 'sandbox-files', claims: filesClaims(call), hostId, baseUrl, signal },
      ...{ method, target: FILES_PATH, rawHeaders: [...own, ...conditions] },
      framing: upload === undefined ? 'none' : framingOf(upload),
    });
    if (upload === undefined) request.end();
    else upload.pipe(request);
    upload?.once('close', () => {
      if (!upload.complete) request.destroy(new Error('the upload was cut'));
    });
    const answer = await awaitAnswer(request);
    upload?.unpipe(request);
    return answer;
  }
}

const READING: ReadonlySet<string> = new Set(['read', 'stat', 'list', 'watch']);

function toFailure({ signal, operation }: FilesCall, cause: Error): AppError {
  if (cause instanceof AppError) return cause;
  if (signal.aborted) return new AppError('cancelled', 'the caller hung up', { cause });
  const message = 'the host of the sandbox cannot be reached now';
  if (READING.has(operation.type)) return new AppError('unavailable', message, { cause });
  return new AppError('outcome_unknown', `${message}; it may have been done`, { cause });
}
