import { Agent as HttpAgent } from 'node:http';
import { Agent as HttpsAgent } from 'node:https';
import type { Readable } from 'node:stream';
import {
  CompleteMultipartUploadCommand,
  type CompletedPart,
  CopyObjectCommand,
  CreateMultipartUploadCommand,
  AbortMultipartUploadCommand,
  DeleteObjectCommand,
  GetObjectCommand,
  HeadObjectCommand,
  type HeadObjectCommandOutput,
  ListObjectsV2Command,
  type ListObjectsV2CommandInput,
  type ListObjectsV2CommandOutput,
  PutObjectCommand,
  S3Client,
  UploadPartCommand,
} from '@aws-sdk/client-s3';
import { DISK_LIMITS } from '../limits.ts';
import type { ReachableNetworks } from '../../../shared/reachable-networks.ts';
import type { BucketCredentials, StoredBucket } from '../../../shared/schemas/disk-bucket.ts';
import { MiB } from '../../../shared/units.ts';
import {
  type Bucket,
  BucketError,
  type BucketObject,
  type UploadSource,
  type WriteTerms,
} from './bucket.ts';
import { explained, explainFailure } from './explain.ts';
import { keyBytesMaxBelow } from './key-names.ts';
import { bucketLookup, refuseAddress } from './reachable-lookup.ts';
import { S3Requests } from './s3-requests.ts';

/** Objects up to this size are one request; larger ones are uploaded in parts. */
const PART_BYTES = 8 * MiB;
/** S3 allows 10,000 parts of an upload. */
const PARTS_MAX = 9_000;
const CONNECTIONS_MAX = 32;
const PAGE_KEYS = 1_000;
/** The name of {@link BucketObject.mark} in the metadata of an object. */
const MARK = 'berthupload';

const DEFAULT_ENDPOINTS: Readonly<Record<string, string>> = {
  s3: 'https://s3.us-east-1.amazonaws.com',
  gcs: 'https://storage.googleapis.com',
};

function openClient(
  mount: StoredBucket,
  credentials: BucketCredentials,
  networks: ReachableNetworks,
): S3Client {
  const { type, endpoint = DEFAULT_ENDPOINTS[type] ?? '' } = mount;
  refuseAddress(endpoint, networks);
  const { accessKeyId = '', secretAccessKey = '', sessionToken } = credentials;
  const connections = {
    keepAlive: true,
    maxSockets: CONNECTIONS_MAX,
    lookup: bucketLookup(endpoint, networks),
  };
  // Google's interface refuses the checksums that S3 has had since 2024.
  const checksums = type === 'gcs' ? 'WHEN_REQUIRED' : 'WHEN_SUPPORTED';
  return new S3Client({
    endpoint,
    region: type === 'r2' || type === 'gcs' ? 'auto' : 'us-east-1',
    followRegionRedirects: type === 's3',
    forcePathStyle: type !== 's3',
    credentials: {
      accessKeyId,
      secretAccessKey,
      ...(sessionToken === undefined ? {} : { sessionToken }),
    },
    maxAttempts: DISK_LIMITS.bucketAttemptsMax,
    requestChecksumCalculation: checksums,
    responseChecksumValidation: checksums,
    requestHandler: new S3Requests({
      httpAgent: new HttpAgent(connections),
      httpsAgent: new HttpsAgent(connections),
    }),
  });
}

/** The condition that the object at the key must meet for a write to happen. */
interface Condition {
  readonly IfMatch?: string;
  readonly IfNoneMatch?: string;
}

interface Target extends Condition {
  readonly Bucket: string;
  readonly Key: string;
  readonly Metadata: Record<string, string>;
}

/**
 * An ETag is the MD5 of the contents, unless they were uploaded in parts or are encrypted with a
 * key of the owner's: then it is of another form, or equals no MD5.
 */
function versionOf(told = ''): Pick<BucketObject, 'etag' | 'md5'> {
  // Ceph tells that of a copy without the quotes.
  const etag = `"${told.replaceAll('"', '')}"`;
  const [, md5] = /^"([0-9a-f]{32})"$/u.exec(etag) ?? [];
  return md5 === undefined ? { etag } : { etag, md5 };
}

function markOf(metadata: Readonly<Record<string, string>> = {}): Pick<BucketObject, 'mark'> {
  const mark = metadata[MARK];
  return mark === undefined ? {} : { mark };
}

type ObjectHeaders = Pick<
  HeadObjectCommandOutput,
  'CacheControl' | 'ContentDisposition' | 'ContentEncoding' | 'ContentLanguage' | 'ContentType'
>;

/** The headers that an object is served with; a copy keeps them. */
const headersOf = ({
  CacheControl,
  ContentDisposition,
  ContentEncoding,
  ContentLanguage,
  ContentType,
}: ObjectHeaders): ObjectHeaders => ({
  CacheControl,
  ContentDisposition,
  ContentEncoding,
  ContentLanguage,
  ContentType,
});

const changedMeanwhile = (): BucketError =>
  new BucketError('changed', 'the object was changed meanwhile');

/** Decodes a key of a listing with `encoding-type=url`; some servers escape spaces as forms do. */
function decodeKey(key: string): string {
  try {
    return decodeURIComponent(key.replaceAll('+', ' '));
  } catch {
    return key;
  }
}

/** A bucket of storage that speaks S3. */
export class S3Bucket implements Bucket {
  readonly keyBytesMax: number;
  readonly #client: S3Client;
  readonly #bucket: string;
  readonly #prefix: string;
  /** Whether it may know conditions of writes; Google's interface does not. */
  #knowsConditions: boolean;
  /** Whether it compares conditions with ETags without their quotes, as Ceph does. */
  #takesBareEtags = false;

  /** @throws BucketError when its address is out of reach */
  constructor(mount: StoredBucket, credentials: BucketCredentials, networks: ReachableNetworks) {
    this.#client = openClient(mount, credentials, networks);
    this.#bucket = mount.bucketName;
    this.#prefix = mount.prefix;
    this.keyBytesMax = keyBytesMaxBelow(mount.prefix);
    this.#knowsConditions = mount.type !== 'gcs';
  }

  async check(abortSignal: AbortSignal): Promise<void> {
    await this.#page({ MaxKeys: 1 }, abortSignal);
  }

  async *list(abortSignal: AbortSignal): AsyncIterable<readonly BucketObject[]> {
    for (let token: string | undefined; ;) {
      const continued = token === undefined ? {} : { ContinuationToken: token };
      // XML cannot say every character that a key may have.
      const input = { MaxKeys: PAGE_KEYS, EncodingType: 'url', ...continued } as const;
      const page = await this.#page(input, abortSignal);
      const next = page.NextContinuationToken;
      // Files whose objects a listing does not have are removed: half of one must not pass for all.
      if (page.IsTruncated === true && next === undefined) {
        throw new BucketError('other', 'the storage does not say how its listing continues');
      }
      if (page.IsTruncated === true && next === token) {
        throw new BucketError('other', 'the storage continues its listing where it was before');
      }
      const keyOf = page.EncodingType === 'url' ? decodeKey : (key: string) => key;
      yield (page.Contents ?? []).map(({ Key = '', Size = 0, ETag = '', LastModified }) => ({
        key: keyOf(Key).slice(this.#prefix.length),
        sizeBytes: Size,
        modifiedMs: LastModified?.getTime() ?? 0,
        ...versionOf(ETag),
      }));
      if (page.IsTruncated !== true) return;
      token = next;
    }
  }

  /** A page of the listing. @throws BucketError for any other answer, such as that of a portal */
  async #page(
    input: Omit<ListObjectsV2CommandInput, 'Bucket' | 'Prefix'>,
    abortSignal: AbortSignal,
  ): Promise<ListObjectsV2CommandOutput> {
    const named = { Bucket: this.#bucket, Prefix: this.#prefix, ...input };
    const command = new ListObjectsV2Command(named);
    const late = AbortSignal.timeout(DISK_LIMITS.bucketPageMsMax);
    const both = AbortSignal.any([abortSignal, late]);
    const page = await explained(() => this.#client.send(command, { abortSignal: both }));
    if (page.IsTruncated === undefined) {
      throw new BucketError('other', 'the storage does not say whether its listing is whole');
    }
    return page;
  }

  async head(key: string, abortSignal: AbortSignal): Promise<BucketObject | undefined> {
    const command = new HeadObjectCommand(this.#named(key));
    try {
      const head = await explained(() => this.#client.send(command, { abortSignal }));
      return {
        key,
        sizeBytes: head.ContentLength ?? 0,
        modifiedMs: head.LastModified?.getTime() ?? 0,
        ...versionOf(head.ETag),
        ...markOf(head.Metadata),
      };
    } catch (error) {
      if (explainFailure(error).failure === 'missing') return undefined;
      throw error;
    }
  }

  async get(
    key: string,
    abortSignal: AbortSignal,
  ): Promise<BucketObject & { readonly body: Readable }> {
    const command = new GetObjectCommand({ ...this.#named(key), ChecksumMode: 'ENABLED' });
    const reply = await explained(() => this.#client.send(command, { abortSignal }));
    return {
      key,
      sizeBytes: reply.ContentLength ?? 0,
      modifiedMs: reply.LastModified?.getTime() ?? 0,
      ...versionOf(reply.ETag),
      body: reply.Body as Readable,
    };
  }

  async put(
    key: string,
    source: UploadSource,
    { replaced, mark }: WriteTerms,
    signal: AbortSignal,
  ): Promise<BucketObject> {
    const { sizeBytes } = source;
    const etag = await this.#onCondition(replaced, (condition) => {
      const target = { ...this.#named(key), ...condition, Metadata: { [MARK]: mark } };
      return sizeBytes <= PART_BYTES
        ? this.#putWhole(target, source, signal)
        : this.#putParts(target, source, replaced, signal);
    });
    const version = etag ? versionOf(etag) : await this.#versionWritten(key, mark, signal);
    return { key, sizeBytes, modifiedMs: Date.now(), ...version };
  }

  async copy(
    from: BucketObject,
    key: string,
    mark: string,
    abortSignal: AbortSignal,
  ): Promise<BucketObject> {
    const source = `${this.#bucket}/${this.#prefix}${from.key}`;
    const send = { abortSignal };
    const reply = await explained(async () => {
      // A mark needs new metadata, so the object's own headers are said again.
      const head = await this.#client.send(new HeadObjectCommand(this.#named(from.key)), send);
      // Ceph ignores the condition below.
      if (versionOf(head.ETag).etag !== from.etag) throw changedMeanwhile();
      const command = new CopyObjectCommand({
        ...this.#named(key),
        CopySource: source.split('/').map(encodeURIComponent).join('/'),
        CopySourceIfMatch: from.etag,
        MetadataDirective: 'REPLACE',
        Metadata: { ...head.Metadata, [MARK]: mark },
        ...headersOf(head),
      });
      return await this.#client.send(command, send);
    });
    return { ...from, key, ...versionOf(reply.CopyObjectResult?.ETag) };
  }

  async remove({ key }: BucketObject, abortSignal: AbortSignal): Promise<void> {
    const command = new DeleteObjectCommand(this.#named(key));
    await explained(() => this.#client.send(command, { abortSignal }));
  }

  close(): void {
    this.#client.destroy();
  }

  #named(key: string): { Bucket: string; Key: string } {
    return { Bucket: this.#bucket, Key: `${this.#prefix}${key}` };
  }

  /** Ceph does not tell the ETag of an upload in parts. */
  async #versionWritten(
    key: string,
    mark: string,
    signal: AbortSignal,
  ): Promise<Pick<BucketObject, 'etag' | 'md5'>> {
    const present = await this.head(key, signal);
    if (present?.mark !== mark) throw changedMeanwhile();
    return present.md5 === undefined
      ? { etag: present.etag }
      : { etag: present.etag, md5: present.md5 };
  }

  /** Has the storage refuse a write over another object than the known one, if it can do that. */
  async #onCondition<T>(
    replaced: BucketObject | undefined,
    write: (condition: Condition) => Promise<T>,
  ): Promise<T> {
    if (!this.#knowsConditions) return write({});
    try {
      if (replaced === undefined) return await write({ IfNoneMatch: '*' });
      return await this.#onMatch(replaced.etag, write);
    } catch (error) {
      if (explainFailure(error).failure !== 'unsupported') throw error;
      this.#knowsConditions = false;
      return await write({});
    }
  }

  /**
   * Ceph's gateway finds that no object has an ETag with quotes, which is the form of the standard.
   */
  async #onMatch<T>(etag: string, write: (condition: Condition) => Promise<T>): Promise<T> {
    const bare = etag.replaceAll('"', '');
    if (this.#takesBareEtags) return write({ IfMatch: bare });
    try {
      return await write({ IfMatch: etag });
    } catch (error) {
      if (explainFailure(error).failure !== 'changed') throw error;
      const result = await write({ IfMatch: bare });
      this.#takesBareEtags = true;
      return result;
    }
  }

  async #putWhole(
    target: Target,
    source: UploadSource,
    abortSignal: AbortSignal,
  ): Promise<string | undefined> {
    const body = await source.read(0, source.sizeBytes);
    const command = new PutObjectCommand({ ...target, Body: body });
    const reply = await explained(() => this.#client.send(command, { abortSignal }));
    return reply.ETag;
  }

  /**
   * Uploads one part after the other: memory holds one, and several files are uploaded at the same
   * time.
   */
  async #putParts(
    { IfMatch, IfNoneMatch, Metadata, ...named }: Target,
    source: UploadSource,
    replaced: BucketObject | undefined,
    abortSignal: AbortSignal,
  ): Promise<string | undefined> {
    const send = { abortSignal };
    const begun = await explained(() =>
      this.#client.send(new CreateMultipartUploadCommand({ ...named, Metadata }), send),
    );
    const upload = { ...named, UploadId: begun.UploadId };
    try {
      const partBytes = Math.max(PART_BYTES, Math.ceil(source.sizeBytes / PARTS_MAX));
      const parts: CompletedPart[] = [];
      for (let offset = 0; offset < source.sizeBytes; offset += partBytes) {
        const body = await source.read(offset, Math.min(partBytes, source.sizeBytes - offset));
        const PartNumber = parts.length + 1;
        const command = new UploadPartCommand({ ...upload, PartNumber, Body: body });
        const { $metadata: _, ...part } = await explained(() => this.#client.send(command, send));
        parts.push({ ...part, PartNumber });
      }
      // Storage that knows conditions of whole objects may ignore them here, as Ceph does.
      const present = await this.head(named.Key.slice(this.#prefix.length), abortSignal);
      if (present?.etag !== replaced?.etag) throw changedMeanwhile();
      const command = new CompleteMultipartUploadCommand({
        ...upload,
        ...(IfMatch === undefined ? {} : { IfMatch }),
        ...(IfNoneMatch === undefined ? {} : { IfNoneMatch }),
        MultipartUpload: { Parts: parts },
      });
      return (await explained(() => this.#client.send(command, send))).ETag;
    } catch (error) {
      // Nobody would ever complete it, and its parts cost money.
      await this.#client.send(new AbortMultipartUploadCommand(upload)).catch(() => undefined);
      throw error;
    }
  }
}
