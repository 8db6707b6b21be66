import { createHash, randomBytes } from 'node:crypto';
import type { Agent } from 'node:https';
import { Readable } from 'node:stream';
import {
  type BlobRequestConditions,
  type BlockBlobClient,
  ContainerClient,
  type StoragePipelineOptions,
} from '@azure/storage-blob';
import { DISK_LIMITS } from '../limits.ts';
import type { ReachableNetworks } from '../../../shared/reachable-networks.ts';
import type { BucketCredentials, StoredBucket } from '../../../shared/schemas/disk-bucket.ts';
import { MiB } from '../../../shared/units.ts';
import { AzureToken } from './azure-token.ts';
import {
  type Bucket,
  BucketError,
  type BucketObject,
  type UploadSource,
  type WriteTerms,
} from './bucket.ts';
import { explained, explainFailure } from './explain.ts';
import { GuardedAgent } from './guarded-agent.ts';
import { keyBytesMaxBelow } from './key-names.ts';
import { bucketLookup, refuseAddress } from './reachable-lookup.ts';

// Keep @azure/storage-blob at 12.33: 12.34 brings Apache Arrow, 10 MB for listings in a form that
// is not used here.

/** The service sends checksums of ranges up to this size only. */
const RANGE_BYTES = 4 * MiB;
/** How many ranges of one object are fetched ahead of what is written to the file. */
const RANGES_AHEAD = 3;
/** Objects up to this size are one request; larger ones are uploaded in blocks. */
const BLOCK_BYTES = 8 * MiB;
/** The service allows 50,000 blocks of a blob. */
const BLOCKS_MAX = 45_000;
const CONNECTIONS_MAX = 32;
/**
 * The service allows twice as many, but their names can be longer than `GuardedAgent` lets pass.
 */
const PAGE_KEYS = 2_500;
const RETRY_DELAY_MS = 500;
const COPY_POLL_MS = 250;
/** The name of {@link BucketObject.mark} in the metadata of a blob. */
const MARK = 'berthupload';

const quoted = (etag = ''): string => `"${etag.replaceAll('"', '')}"`;
const md5Of = (bytes: Buffer): Buffer => createHash('md5').update(bytes).digest();
const toHex = (bytes?: Uint8Array): { md5?: string } =>
  bytes === undefined ? {} : { md5: Buffer.from(bytes).toString('hex') };

function markOf(metadata: Readonly<Record<string, string>> = {}): Pick<BucketObject, 'mark'> {
  const mark = metadata[MARK];
  return mark === undefined ? {} : { mark };
}

/** The total of `bytes 0-9/1234`. */
const totalOf = (contentRange = ''): number => Number(contentRange.split('/')[1] ?? 0);

/** Refuses the write unless the blob is still the one that the caller has seen. */
const unlessChanged = (replaced: BucketObject | undefined): BlobRequestConditions =>
  replaced === undefined ? { ifNoneMatch: '*' } : { ifMatch: replaced.etag };

export interface AzureSettings {
  readonly networks: ReachableNetworks;
  /** Where applications of Azure get their tokens. */
  readonly azureAuthority: string;
}

/** A container of Azure Blob Storage. */
export class AzureBucket implements Bucket {
  readonly keyBytesMax: number;
  readonly #container: ContainerClient;
  readonly #prefix: string;
  readonly #agent: Agent;

  /** @throws BucketError when its address is out of reach */
  constructor(mount: StoredBucket, credentials: BucketCredentials, settings: AzureSettings) {
    const { endpoint = '', bucketName, prefix } = mount;
    const { networks, azureAuthority } = settings;
    refuseAddress(endpoint, networks);
    this.#prefix = prefix;
    this.keyBytesMax = keyBytesMaxBelow(prefix);
    this.#agent = new GuardedAgent({
      keepAlive: true,
      maxSockets: CONNECTIONS_MAX,
      timeout: DISK_LIMITS.bucketSilenceMsMax,
      lookup: bucketLookup(endpoint, networks),
    });
    // `agent` and `redirectOptions` are options of the pipeline that the SDK's types leave out.
    const options: StoragePipelineOptions & { agent: Agent; redirectOptions: object } = {
      agent: this.#agent,
      redirectOptions: { maxRetries: 0 },
      retryOptions: { maxTries: DISK_LIMITS.bucketAttemptsMax, retryDelayInMs: RETRY_DELAY_MS },
    };
    const token = new AzureToken(azureAuthority, credentials);
    this.#container = new ContainerClient(`${endpoint}/${bucketName}`, token, options);
  }

  async check(abortSignal: AbortSignal): Promise<void> {
    const pages = this.#container.listBlobsFlat({ prefix: this.#prefix, abortSignal });
    await explained(() => pages.byPage({ maxPageSize: 1 }).next());
  }

  async *list(abortSignal: AbortSignal): AsyncIterable<readonly BucketObject[]> {
    const blobs = this.#container.listBlobsFlat({ prefix: this.#prefix, abortSignal });
    const pages = blobs.byPage({ maxPageSize: PAGE_KEYS });
    for (;;) {
      const next = await explained(() => pages.next());
      if (next.done === true) return;
      yield next.value.segment.blobItems.map(({ name, properties }) => ({
        key: name.slice(this.#prefix.length),
        sizeBytes: properties.contentLength ?? 0,
        etag: quoted(properties.etag),
        modifiedMs: properties.lastModified.getTime(),
        ...toHex(properties.contentMD5),
      }));
    }
  }

  async head(key: string, abortSignal: AbortSignal): Promise<BucketObject | undefined> {
    try {
      const found = await explained(() => this.#blob(key).getProperties({ abortSignal }));
      return {
        key,
        sizeBytes: found.contentLength ?? 0,
        etag: quoted(found.etag),
        modifiedMs: found.lastModified?.getTime() ?? 0,
        ...toHex(found.contentMD5),
        ...markOf(found.metadata),
      };
    } catch (error) {
      if (explainFailure(error).failure === 'missing') return undefined;
      throw error;
    }
  }

  async get(key: string, signal: AbortSignal): Promise<BucketObject & { readonly body: Readable }> {
    const first = await this.#firstRange(key, signal);
    const body = Readable.from(this.#ranges(first, signal), { objectMode: false });
    return { ...first.object, body };
  }

  async put(
    key: string,
    source: UploadSource,
    { replaced, mark }: WriteTerms,
    signal: AbortSignal,
  ): Promise<BucketObject> {
    const { sizeBytes } = source;
    const terms = { conditions: unlessChanged(replaced), metadata: { [MARK]: mark } };
    const write = sizeBytes <= BLOCK_BYTES ? putWhole : putBlocks;
    const { etag, md5 } = await write(this.#blob(key), source, terms, signal);
    return { key, sizeBytes, etag: quoted(etag), modifiedMs: Date.now(), ...toHex(md5) };
  }

  async copy(
    from: BucketObject,
    key: string,
    mark: string,
    abortSignal: AbortSignal,
  ): Promise<BucketObject> {
    const source = this.#blob(from.key);
    const etag = await explained(async () => {
      const { metadata } = await source.getProperties({ abortSignal });
      const options = {
        abortSignal,
        intervalInMs: COPY_POLL_MS,
        sourceConditions: { ifMatch: from.etag },
        metadata: { ...metadata, [MARK]: mark },
      };
      const copying = await this.#blob(key).beginCopyFromURL(source.url, options);
      return (await copying.pollUntilDone()).etag;
    });
    return { ...from, key, etag: quoted(etag) };
  }

  async remove({ key, etag }: BucketObject, abortSignal: AbortSignal): Promise<void> {
    const conditions = { ifMatch: etag };
    await explained(() => this.#blob(key).deleteIfExists({ conditions, abortSignal }));
  }

  close(): void {
    this.#agent.destroy();
  }

  #blob(key: string): BlockBlobClient {
    return this.#container.getBlockBlobClient(`${this.#prefix}${key}`);
  }

  async #firstRange(
    key: string,
    signal: AbortSignal,
  ): Promise<{ object: BucketObject; bytes: Buffer }> {
    try {
      return await this.#range(key, 0, RANGE_BYTES, undefined, signal);
    } catch (error) {
      // The service refuses every range of an empty blob.
      const object = await this.head(key, signal);
      if (object?.sizeBytes === 0) return { object, bytes: Buffer.of() };
      throw error;
    }
  }

  /** A part of a blob, compared with the checksum that the service makes of it. */
  #range(
    key: string,
    offset: number,
    length: number,
    etag: string | undefined,
    abortSignal: AbortSignal,
  ): Promise<{ object: BucketObject; bytes: Buffer }> {
    return explained(async () => {
      const conditions = etag === undefined ? {} : { ifMatch: etag };
      const options = { conditions, abortSignal, rangeGetContentMD5: true };
      const reply = await this.#blob(key).download(offset, length, options);
      const bytes = await collect(reply.readableStreamBody ?? [], length);
      if (reply.contentMD5 !== undefined && !md5Of(bytes).equals(reply.contentMD5)) {
        throw new BucketError('away', 'what the storage sent does not have its checksum');
      }
      const object = {
        key,
        sizeBytes: totalOf(reply.contentRange),
        etag: quoted(reply.etag),
        modifiedMs: reply.lastModified?.getTime() ?? 0,
        ...toHex(reply.blobContentMD5),
      };
      return { object, bytes };
    });
  }

  async *#ranges(
    { object, bytes }: { object: BucketObject; bytes: Buffer },
    signal: AbortSignal,
  ): AsyncIterable<Buffer> {
    const { key, sizeBytes, etag } = object;
    const ahead: Promise<{ bytes: Buffer }>[] = [];
    let offset = bytes.length;
    const fetchAhead = (): void => {
      while (ahead.length < RANGES_AHEAD && offset < sizeBytes) {
        const range = this.#range(key, offset, RANGE_BYTES, etag, signal);
        range.catch(() => undefined); // Seen when its turn comes, if it ever does.
        ahead.push(range);
        offset += RANGE_BYTES;
      }
    };
    fetchAhead();
    if (bytes.length > 0) yield bytes;
    for (let next = ahead.shift(); next !== undefined; next = ahead.shift()) {
      const range = await next;
      fetchAhead();
      yield range.bytes;
    }
  }
}

/** @throws BucketError for more than `bytesMax` */
async function collect(
  body: NodeJS.ReadableStream | readonly Buffer[],
  bytesMax: number,
): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const each of body) {
    const chunk = typeof each === 'string' ? Buffer.from(each) : each;
    bytes += chunk.length;
    if (bytes > bytesMax) {
      throw new BucketError('other', 'the storage sent more than was asked for');
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

interface BlobTerms {
  readonly conditions: BlobRequestConditions;
  readonly metadata: Record<string, string>;
}

interface Written {
  readonly etag: string | undefined;
  readonly md5: Buffer;
}

async function putWhole(
  blob: BlockBlobClient,
  source: UploadSource,
  terms: BlobTerms,
  abortSignal: AbortSignal,
): Promise<Written> {
  const body = await source.read(0, source.sizeBytes);
  const md5 = md5Of(body);
  const options = { ...terms, abortSignal, transactionalContentMD5: md5 };
  const { etag } = await explained(() => blob.upload(body, body.length, options));
  return { etag, md5 };
}

/**
 * Uploads one block after the other: memory holds one. Blocks of an upload that fails expire by
 * themselves.
 */
async function putBlocks(
  blob: BlockBlobClient,
  source: UploadSource,
  terms: BlobTerms,
  abortSignal: AbortSignal,
): Promise<Written> {
  const blockBytes = Math.max(BLOCK_BYTES, Math.ceil(source.sizeBytes / BLOCKS_MAX));
  // A prefix for this upload alone, so that blocks of two uploads of one blob are never mixed.
  const upload = randomBytes(8).toString('hex');
  const all = createHash('md5');
  const ids: string[] = [];
  for (let offset = 0; offset < source.sizeBytes; offset += blockBytes) {
    const body = await source.read(offset, Math.min(blockBytes, source.sizeBytes - offset));
    all.update(body);
    const id = Buffer.from(`${upload}${String(ids.length).padStart(6, '0')}`).toString('base64');
    const options = { abortSignal, transactionalContentMD5: md5Of(body) };
    await explained(() => blob.stageBlock(id, body, body.length, options));
    ids.push(id);
  }
  const md5 = all.digest();
  const options = { ...terms, abortSignal, blobHTTPHeaders: { blobContentMD5: md5 } };
  const { etag } = await explained(() => blob.commitBlockList(ids, options));
  return { etag, md5 };
}
