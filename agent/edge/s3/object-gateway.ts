import type { IncomingMessage, ServerResponse } from 'node:http';
import { isPreflight } from '../../../shared/http/cross-origin.ts';
import { addressParties } from '../../../shared/http/address-key.ts';
import type { Directory } from '../../../shared/directory/directory.ts';
import type { DiskEntry } from '../../../shared/directory/disk-record.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import { FairShares, type Permit } from '../../../shared/fair-shares.ts';
import {
  type Origin,
  type RequestForwarder,
  readOrigin,
} from '../../../shared/links/forward-request.ts';
import { diskIdPattern, newJobId as newClientId } from '../../../shared/ids.ts';
import { clientAddress } from '../../../shared/http/client-address.ts';
import { EDGE_LIMITS } from '../limits.ts';
import { servePartInSpan } from '../../../shared/links/traced-part-request.ts';
import type { Logger } from '../../../shared/log.ts';
import { type OpenSpan, serveInSpan } from '../../../shared/spans.ts';
import type { Claims } from '../../../shared/links/single-use-token.ts';
import type { StorageWatch } from '../../../shared/storage-watch.ts';
import type { DiskRegistry } from '../../disks/disk-registry.ts';
import { onBehalfOf } from '../../disks/disk-threads.ts';
import { RequestsUnderWay } from '../../system/queues/requests-under-way.ts';
import type { Histogram } from '../../../shared/metrics.ts';
import { Exchange } from './http/exchange.ts';
import { S3Error } from './protocol/errors.ts';
import { assertAccepted } from './operations/accepted-fields.ts';
import {
  acceptOperation,
  addsToDisk,
  LIST_BUCKETS,
  type NamedOperation,
  selectOperation,
  takesForm,
} from './operations/table.ts';
import { listBuckets } from './operations/buckets.ts';
import type { ObjectCall, S3Reply } from './http/operation.ts';
import {
  type Admission,
  authenticate,
  authorize,
  authorizeOther,
  type PrincipalDeps,
  assertMayChange,
  assertOwner,
  reachableDisks,
} from './auth/principal.ts';
import { FormHeads, isPostForm } from './http/post-form.ts';
import type { PostForm } from './auth/post-policy.ts';
import { RequestBody } from './http/request-body.ts';
import { type ObjectHeaders, readHeaders } from './http/request-headers.ts';
import { CopySources } from './copy-sources.ts';
import { DeletionRecords } from './deletion-records.ts';
import { ObjectStores, type OpenStore } from './object-stores.ts';
import type { RemoteObjects } from './remote-objects.ts';
import { type ObjectTarget, readTarget } from './http/target.ts';

const diskId = new RegExp(diskIdPattern, 'u');
const SPAN = { name: 'object', kind: 'server' } as const;

export type ObjectDurations = Histogram<'operation' | 'status'>;

export interface ObjectGatewayOptions {
  readonly hostId: string;
  readonly directory: Directory;
  readonly principals: PrincipalDeps;
  readonly diskRegistry: DiskRegistry;
  readonly storage: StorageWatch;
  readonly forwarder: RequestForwarder;
  /** Reads objects of disks that other hosts handle. */
  readonly remote: RemoteObjects;
  /** The most requests at the same time. */
  readonly requestsMax: number;
  /** Addresses of proxies, which any number of clients share. */
  readonly proxies: readonly string[];
  /** Proxies whose `X-Forwarded-For` is believed. */
  readonly trustedProxies: readonly string[];
  readonly durations: ObjectDurations;
  readonly log: Logger;
}

/**
 * The object API (docs/object-api.md). Any agent accepts any request; one for a disk that another
 * host handles is forwarded to that host.
 */
export class ObjectGateway {
  readonly #options: ObjectGatewayOptions;
  readonly #stores: ObjectStores;
  readonly #sources: CopySources;
  readonly #underWay = new RequestsUnderWay();
  readonly #permits: FairShares;
  readonly #forms: FormHeads;
  readonly #deletions: DeletionRecords;
  /** When each disk user's client was last recorded. */
  readonly #clientsNoted = new Map<string, number>();
  #isClosed = false;

  constructor(options: ObjectGatewayOptions) {
    this.#options = options;
    this.#permits = new FairShares(options.requestsMax);
    this.#forms = new FormHeads(options.proxies);
    this.#stores = new ObjectStores(options.diskRegistry);
    this.#sources = new CopySources(options);
    const { directory, log } = options;
    this.#deletions = new DeletionRecords({ activity: directory.activity, log });
  }

  /** A client's own request, on the public port. Never throws. */
  handle(request: IncomingMessage, response: ServerResponse): void {
    const address = clientAddress(request, this.#options.trustedProxies);
    const exchange = new Exchange(request, response);
    const { traceparent } = request.headers;
    this.#underWay.add(
      serveInSpan(traceparent?.toString(), SPAN, (span) =>
        this.#answer(exchange, { address, hopsLeft: '1' }, span),
      ),
    );
  }

  /**
   * A request that control or another agent forwards to the internal port. Never throws.
   * @param claims from the forwarder's token
   */
  handleForwarded(request: IncomingMessage, response: ServerResponse, claims: Claims): void {
    const exchange = new Exchange(request, response);
    try {
      const origin = readOrigin(claims);
      this.#underWay.add(
        servePartInSpan(claims, SPAN, (span) => this.#answer(exchange, origin, span)),
      );
    } catch (thrown) {
      exchange.fail(thrown);
    }
  }

  /** True when so many requests are under way that stalled ones keep others out. */
  get isCrowded(): boolean {
    return this.#permits.isCrowded;
  }

  /** Refuses new requests; settles when those under way have ended. */
  async drain(): Promise<void> {
    this.#isClosed = true;
    await this.#deletions.flush(); // Requests may take longer than the agent may wait.
    await this.#underWay.ended();
    await this.#deletions.flush();
  }

  async #answer(exchange: Exchange, origin: Origin, span: OpenSpan): Promise<void> {
    const { log, durations } = this.#options;
    const begunAt = performance.now();
    try {
      await this.#serve(exchange, origin);
    } catch (thrown) {
      exchange.fail(thrown);
    }
    const { operation, status, notes } = exchange;
    span.rename(`object ${operation}`);
    span.set({
      'http.request.method': exchange.request.method,
      'http.response.status_code': status,
      'berth.request_id': String(notes['requestId']),
    });
    if (status >= 500) span.fail(String(status));
    const durationMs = performance.now() - begunAt;
    durations.observe({ operation, status: String(status) }, durationMs / 1000);
    const { address } = origin;
    log.info(
      { operation, status, address, durationMs: Math.round(durationMs), ...notes },
      'object:answered',
    );
  }

  async #serve(exchange: Exchange, origin: Origin): Promise<void> {
    const { principals } = this.#options;
    if (this.#isClosed) throw new S3Error('ServiceUnavailable', 'The host is shutting down.');
    const { method = '', url = '', rawHeaders } = exchange.request;
    const target = readTarget(url);
    if (await this.#answerPreflight(exchange, target)) return;
    const head = { method, target: url, rawHeaders };
    const headers = readHeaders(exchange.request, target.query);
    const selected = selectOperation(method, target, headers);
    const form = takesForm(selected) ? await this.#peekForm(exchange, origin.address) : undefined;
    const admission = await authenticate(principals, head, target.bucket, form);
    if (target.bucket === '') {
      return this.#listBuckets(exchange, origin, { target, headers, admission });
    }
    const disk = await authorize(principals, admission.principal, target.bucket, origin.address);
    exchange.notes['diskId'] = disk.record.id;
    assertOwner(disk, headers.values['x-amz-expected-bucket-owner']);
    using _permit = this.#takePermit(disk.record.accountId, origin.address);
    const isFirst = origin.hopsLeft !== '0';
    if (isFirst) await this.#countRequest(disk.record.accountId);
    this.#noteClient(admission, disk, origin.address);
    const named = acceptOperation(selected, target, headers);
    exchange.operation = named.name;
    if (method !== 'GET' && method !== 'HEAD') assertMayChange(admission.principal);
    if (addsToDisk(method, named)) {
      if (isFirst) await this.#refuseIfFull(disk.record.accountId);
      if (this.#options.storage.isLow) {
        throw new S3Error('ServiceUnavailable', 'The storage of the host is almost full.');
      }
    }
    await this.#serveOnDisk(exchange, origin, { target, headers, admission, disk, named, form });
  }

  async #listBuckets(
    exchange: Exchange,
    { address }: Origin,
    { target, headers, admission: { principal } }: Pick<Wanted, 'target' | 'headers' | 'admission'>,
  ): Promise<void> {
    exchange.operation = LIST_BUCKETS.name;
    if (exchange.request.method !== 'GET' || target.key !== '') {
      throw new S3Error('MethodNotAllowed');
    }
    assertAccepted(LIST_BUCKETS, headers, target);
    using _permit = this.#takePermit(principal.accountId, address);
    await this.#countRequest(principal.accountId);
    const disks = await reachableDisks(this.#options.principals, principal, address);
    await exchange.send(listBuckets(disks, target));
  }

  /**
   * Lets the page that sent the request read the answer, if the disk allows its origin.
   * @returns whether the request was a preflight and is answered now
   * @throws S3Error AccessForbidden, whether there is such a disk or not
   */
  async #answerPreflight(exchange: Exchange, { bucket }: ObjectTarget): Promise<boolean> {
    const { request } = exchange;
    const isAdmitted = exchange.admitOrigin(
      request.headers.origin === undefined ? [] : await this.#originsOf(bucket),
    );
    if (!isPreflight(request)) return false;
    exchange.operation = 'Preflight';
    if (!isAdmitted) throw new S3Error('AccessForbidden');
    exchange.allowPreflight();
    return true;
  }

  async #originsOf(bucket: string): Promise<readonly string[]> {
    const { disks } = this.#options.principals;
    return diskId.test(bucket) ? disks.allowedOriginsOf(bucket) : [];
  }

  /** The fields of a form, which may carry the credentials. */
  async #peekForm(exchange: Exchange, address: string): Promise<PostForm | undefined> {
    if (!isPostForm(exchange.request)) return undefined;
    exchange.continue();
    return this.#forms.peek(exchange.request, address);
  }

  /**
   * Takes a permit for the request once its account is known; until then it costs little more than
   * its connection.
   * @throws S3Error SlowDown
   */
  #takePermit(accountId: string, address: string): Permit {
    const parties = addressParties(this.#options.proxies, address);
    const permit = this.#permits.take([...parties, `account ${accountId}`]);
    if (permit === undefined) throw new S3Error('SlowDown');
    return permit;
  }

  /** @throws S3Error SlowDown */
  async #countRequest(accountId: string): Promise<void> {
    const quota = await this.#options.directory.accountQuotas.takeRequest(accountId);
    if (quota?.isExceeded === true) throw new S3Error('SlowDown');
  }

  /** @throws S3Error QuotaExceeded */
  async #refuseIfFull(accountId: string): Promise<void> {
    const { accountQuotas } = this.#options.directory;
    if ((await accountQuotas.whyNotWrite(accountId)) === undefined) return;
    throw new S3Error('QuotaExceeded', 'The disks of the account hold as much as they may.');
  }

  async #serveOnDisk(exchange: Exchange, origin: Origin, wanted: Wanted): Promise<void> {
    const { hostId } = this.#options;
    const { record, leaseHolder } = wanted.disk;
    if (leaseHolder !== undefined && leaseHolder !== hostId) {
      return this.#passOn(exchange, origin, leaseHolder);
    }
    try {
      await this.#run(exchange, origin, wanted);
    } catch (error) {
      // The claim is the first step, so nothing of the request has been read or answered yet.
      if (!(error instanceof AppError) || error.code !== 'disk_moved') throw error;
      const moved = await this.#options.directory.disks.get(record.accountId, record.id);
      if (moved?.leaseHolder === undefined || moved.leaseHolder === hostId) throw error;
      await this.#passOn(exchange, origin, moved.leaseHolder);
    }
  }

  async #run(
    exchange: Exchange,
    origin: Origin,
    { target, headers, admission, disk, named, form }: Wanted,
  ): Promise<void> {
    const { request } = exchange;
    const { principals } = this.#options;
    const clientId = newClientId();
    const onRevoked = (reason: AppError): void => exchange.abort(reason);
    await using opened = new AsyncDisposableStack();
    const open = async ({ record }: DiskEntry): Promise<OpenStore> =>
      opened.use(await this.#stores.open(record, clientId, onRevoked));
    const own = await open(disk);
    const { store } = own;
    const call: ObjectCall = {
      headers: headers.values,
      ...{ target, disk, store, form, policy: admission.policy },
      deleted: { keys: 0, failedKeys: 0 },
      body: new RequestBody({ request, headers: headers.raw, admission, origin }, () =>
        exchange.continue(),
      ),
      openSource: (source) =>
        this.#sources.open(source, {
          ...{ disk, store, headers, opened, signal: exchange.signal },
          open: async (other) => (await open(other)).store,
          authorize: (bucket) =>
            authorizeOther(principals, admission.principal, bucket, origin.address),
        }),
    };
    const { accountId } = disk.record;
    const operate = async (): Promise<S3Reply> => {
      try {
        const reply = await named.operation(call);
        if (named.changesObjects === true) await settle(own);
        return reply;
      } finally {
        // Some keys may be gone even when the request fails.
        await this.#recordDeletion(exchange, origin, admission, call);
      }
    };
    await onBehalfOf(accountId, exchange.signal, async () => exchange.send(await operate()));
  }

  async #recordDeletion(
    { operation, notes: { requestId } }: Exchange,
    { address }: Origin,
    { principal }: Admission,
    { disk: { record }, deleted }: ObjectCall,
  ): Promise<void> {
    if (deleted.keys + deleted.failedKeys === 0) return;
    const about = { accountId: record.accountId, diskId: record.id };
    const deletion = { ...about, principal, address, requestId, deleted };
    if (operation === 'DeleteObjects') await this.#deletions.recordCall(deletion);
    else await this.#deletions.count(deletion);
  }

  async #passOn(exchange: Exchange, origin: Origin, hostId: string): Promise<void> {
    const { directory, forwarder } = this.#options;
    const baseUrl = origin.hopsLeft === '0' ? undefined : await directory.hosts.find(hostId);
    if (baseUrl === undefined) {
      throw new S3Error(
        'ServiceUnavailable',
        'The host that has the disk cannot be reached at the moment.',
      );
    }
    exchange.notes['forwardedTo'] = hostId;
    await exchange.forward(forwarder, { hostId, baseUrl, origin: { ...origin, hopsLeft: '0' } });
  }

  /** Records the client for `connectedClients`, without holding up the answer. */
  #noteClient({ principal }: Admission, { record }: DiskEntry, address: string): void {
    if (principal.kind !== 'disk_user') return;
    const { identifier } = principal;
    const name = `${record.id} ${identifier} ${address}`;
    const now = Date.now();
    if (now - (this.#clientsNoted.get(name) ?? 0) < EDGE_LIMITS.clientWrittenEveryMs) return;
    if (this.#clientsNoted.size >= EDGE_LIMITS.clientsRememberedMax) this.#clientsNoted.clear();
    this.#clientsNoted.set(name, now);
    this.#options.directory.disks
      .recordClient(record, { identifier, ipAddress: address })
      .catch(() => this.#clientsNoted.delete(name));
  }
}

/** Waits until a change is in the object storage behind the disk, if there is any. */
async function settle(store: OpenStore): Promise<void> {
  try {
    await store.settle();
  } catch (error) {
    throw new S3Error('ServiceUnavailable', toError(error).message, { cause: error });
  }
}

/** A request that was authenticated and authorized. */
interface Wanted {
  readonly target: ObjectTarget;
  readonly headers: ObjectHeaders;
  readonly admission: Admission;
  readonly disk: DiskEntry;
  readonly named: NamedOperation;
  readonly form: PostForm | undefined;
}
