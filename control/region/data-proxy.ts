import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import { addressParties } from '../../shared/http/address-key.ts';
import {
  DATA_PATH,
  type DataRequest,
  FILE_REQUEST_HEADERS,
} from '../../shared/links/data-protocol.ts';
import { whenClosed } from '../../shared/http/send-request.ts';
import { FairShares, type Permit } from '../../shared/fair-shares.ts';
import { AppError, errnoOf, toError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import { checkTaken, type PartAuth, PartRequests } from '../../shared/links/part-requests.ts';
import type { KnownHosts } from './known-hosts.ts';

const FREE_SOCKETS_PER_HOST = 16;

/** A file of a disk, asked for at one host. */
export interface FileCall {
  readonly hostId: string;
  readonly accountId: string;
  readonly diskId: string;
  readonly key: string;
  readonly method: 'GET' | 'HEAD';
  /** The caller's; only those that concern ranges and preconditions are passed on. */
  readonly headers: IncomingHttpHeaders;
  readonly requestId: string;
  /** The caller's own. */
  readonly address: string;
  /** Aborted when the caller hangs up. */
  readonly signal: AbortSignal;
}

const passedOn = (headers: IncomingHttpHeaders): string[] =>
  FILE_REQUEST_HEADERS.flatMap((name) => {
    const value = headers[name];
    return typeof value === 'string' ? [name, value] : [];
  });

export interface DataProxyOptions {
  readonly hub: Pick<KnownHosts, 'find'>;
  readonly auth: PartAuth;
  /** At the same time. */
  readonly downloadsMax: number;
  /** Addresses that any number of clients share. */
  readonly proxies: readonly string[];
}

/** This node's way to the hosts' data endpoints. */
export class DataProxy {
  readonly #hub: Pick<KnownHosts, 'find'>;
  readonly #requests: PartRequests;
  readonly #permits: FairShares;
  readonly #proxies: readonly string[];

  constructor({ hub, auth, downloadsMax, proxies }: DataProxyOptions) {
    this.#hub = hub;
    this.#permits = new FairShares(downloadsMax);
    this.#proxies = proxies;
    this.#requests = new PartRequests(auth, FREE_SOCKETS_PER_HOST);
  }

  /**
   * The host's answer, its body not read yet: whoever gets it reads or destroys it.
   * @throws AppError what the host says; `unavailable` when it cannot be reached, `cancelled`;
   *   `no_capacity` and `rate_limited` when too many downloads are open
   */
  async open(call: FileCall): Promise<IncomingMessage> {
    const permit = this.#takePermit(call);
    try {
      const answer = await this.#ask(call);
      whenClosed(answer, () => permit[Symbol.dispose]());
      return answer;
    } catch (error) {
      permit[Symbol.dispose]();
      throw error;
    }
  }

  /** All permits are taken, so transfers that stall keep others out. */
  get isCrowded(): boolean {
    return this.#permits.isCrowded;
  }

  close(): void {
    this.#requests.close();
  }

  #takePermit({ accountId, diskId, key, address }: FileCall): Permit {
    const parties = addressParties(this.#proxies, address);
    const permit = this.#permits.take([
      ...parties,
      `account ${accountId}`,
      `link ${diskId} ${key}`,
    ]);
    if (permit !== undefined) return permit;
    if (this.#permits.isFull) throw new AppError('no_capacity', 'too many downloads; try again');
    throw new AppError('rate_limited', 'too many downloads of this file or by you; try again');
  }

  async #ask(call: FileCall): Promise<IncomingMessage> {
    let answer: IncomingMessage;
    try {
      answer = await this.#send(call).catch((error: unknown) => {
        // The host may close an idle connection at the moment at which we take it. Reading twice
        // does no harm.
        const isStale = errnoOf(error) === 'ECONNRESET' && !call.signal.aborted;
        if (isStale) return this.#send(call);
        throw error;
      });
    } catch (thrown) {
      if (thrown instanceof AppError) throw thrown;
      if (call.signal.aborted) throw new AppError('cancelled', 'the caller hung up');
      throw new AppError('unavailable', 'the host that handles this disk cannot be reached now', {
        cause: toError(thrown),
      });
    }
    checkTaken(answer);
    return answer;
  }

  async #send(call: FileCall): Promise<IncomingMessage> {
    const { hostId, accountId, diskId, key, method, headers, requestId, signal } = call;
    const host = this.#hub.find(hostId);
    if (host === undefined) {
      throw new AppError('unavailable', 'the host that handles this disk cannot be reached now');
    }
    const wanted: DataRequest = { accountId, diskId, key, operation: 'read' };
    const { internalUrl: baseUrl } = host;
    const own = ['Host', new URL(baseUrl).host, 'X-Request-Id', requestId];
    const request = {
      ...{ purpose: 'agent-data' as const, claims: wanted, hostId, baseUrl, signal },
      ...{ method, target: DATA_PATH, rawHeaders: [...own, ...passedOn(headers)] },
    };
    return this.#requests.ask(request, LIMITS.dataHeadersMsMax);
  }
}
