import { isIP } from 'node:net';
import { isDeepStrictEqual } from 'node:util';
import type { DiskEntry, DiskRecord } from '../../../shared/directory/disk-record.ts';
import { AppError } from '../../../shared/errors.ts';
import { newBucketId } from '../../../shared/ids.ts';
import { portOf, ReachableNetworks } from '../../../shared/reachable-networks.ts';
import {
  type DiskMountInput,
  type BucketCredentials,
  bucketSealContext,
  type MountType,
  type StoredBucket,
} from '../../../shared/schemas/disk-bucket.ts';
import { seal } from '../../../shared/secrets.ts';
import { callDiskHost, type RequestContext } from '../../region/call-disk-host.ts';
import type { Deps } from '../../region/deps.ts';
import { findDisk } from '../../region/find-disk.ts';
import { recordDisk } from './record-disk.ts';

const refused = (reason: string): AppError => new AppError('bad_request', `mounts[0]: ${reason}`);

/**
 * The form in which endpoints are stored and compared.
 * @throws AppError `bad_request` for what is no plain URL, and for addresses that are not reachable
 */
function normaliseEndpoint(text: string, networks: ReachableNetworks): string {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || (url.protocol !== 'https:' && url.protocol !== 'http:')) {
    throw refused('the endpoint must be a URL such as https://objects.example.com');
  }
  if (url.username !== '' || url.password !== '' || url.search !== '' || url.hash !== '') {
    throw refused('the endpoint must be a URL without credentials, query and fragment');
  }
  const name = url.hostname.replaceAll(/^\[|\]$/gu, '').replace(/\.$/u, '');
  const address = /(?:^|\.)localhost$/u.test(name) ? '127.0.0.1' : name;
  const port = portOf(url);
  if (isIP(address) !== 0 && !networks.allows(address, port)) {
    throw refused(
      'the endpoint is a private address; BUCKET_REACHABLE_NETWORKS says which may be used',
    );
  }
  if (url.protocol === 'http:' && !networks.isNamed(address, port)) {
    throw refused('the endpoint must begin with https://');
  }
  return `${url.origin}${url.pathname.replace(/\/+$/u, '')}`;
}

/** @returns empty, or the folder with a slash at its end @throws AppError `bad_request` */
function normalisePrefix(text: string): string {
  const path = text.replace(/\/$/u, '');
  if (path === '') return '';
  const parts = path.split('/');
  if (parts.some((part) => part === '' || part === '.' || part === '..') || path.includes('\0')) {
    throw refused('bucketPrefix must be a path without empty parts, "." and ".."');
  }
  return `${path}/`;
}

/** @returns the bucket and where it is; no endpoint: the usual one of its type */
function bucketOf(input: DiskMountInput): { bucketName: string; endpoint: string | undefined } {
  if (input.type !== 'azure-blob') {
    return { bucketName: input.bucketName, endpoint: input.bucketEndpoint };
  }
  const { containerName: bucketName, storageAccountName: account } = input;
  const usual = account === undefined ? undefined : `https://${account}.blob.core.windows.net`;
  const endpoint = input.endpoint ?? usual;
  if (endpoint === undefined) throw refused('azure-blob needs storageAccountName or endpoint');
  // Tokens of applications are not sent over a plain connection.
  if (!endpoint.startsWith('https:')) throw refused('the endpoint must begin with https://');
  return { bucketName, endpoint };
}

/** Checks the credentials that a mount of this type must have. @throws AppError `bad_request` */
function checkCredentials(type: MountType, given: BucketCredentials): BucketCredentials {
  const isAzure = type === 'azure-blob';
  const names = isAzure
    ? (['tenantId', 'clientId', 'clientSecret'] as const)
    : (['accessKeyId', 'secretAccessKey'] as const);
  const missing = names.filter((name) => given[name] === undefined);
  if (missing.length > 0) {
    const reason = type === 's3' ? '; roles of the host (iam) are not built yet' : '';
    throw new AppError('bad_request', `${type} needs ${missing.join(' and ')}${reason}`);
  }
  const { accessKeyId, secretAccessKey, sessionToken, tenantId, clientId, clientSecret } = given;
  if (isAzure) return { tenantId, clientId, clientSecret } as BucketCredentials;
  const token = sessionToken === undefined ? {} : { sessionToken };
  return { accessKeyId, secretAccessKey, ...token } as BucketCredentials;
}

const sealCredentials = (
  { config }: Deps,
  diskId: string,
  mountId: string,
  credentials: BucketCredentials,
): string =>
  seal(
    config.cluster.encryptionKeys,
    JSON.stringify(credentials),
    bucketSealContext(diskId, mountId),
  );

/** The mounts of a new disk's record. @throws AppError `bad_request` */
export function newMounts(
  deps: Deps,
  diskId: string,
  inputs: readonly DiskMountInput[] = [],
): StoredBucket[] {
  const networks = new ReachableNetworks(deps.config.cluster.bucketNetworks);
  return inputs.map((input) => {
    const id = newBucketId();
    const credentials = checkCredentials(input.type, input);
    const { bucketName, endpoint } = bucketOf(input);
    return {
      id,
      type: input.type,
      bucketName,
      ...(endpoint === undefined ? {} : { endpoint: normaliseEndpoint(endpoint, networks) }),
      prefix: normalisePrefix(input.bucketPrefix ?? ''),
      writeBack: input.writeBack ?? 'sync',
      sealedCredentials: sealCredentials(deps, diskId, id, credentials),
    };
  });
}

const comparable = ({ mounts = [] }: DiskRecord): unknown[] =>
  mounts.map(({ id: _id, sealedCredentials: _sealed, ...rest }) => rest);

/** Whether two disks have the same object storage; secrets do not count. */
export const haveSameMounts = (a: DiskRecord, b: DiskRecord): boolean =>
  isDeepStrictEqual(comparable(a), comparable(b));

/**
 * Replaces the credentials of a mount and tries them.
 * @returns the disk with what was found out
 * @throws AppError `not_found`, `bad_request`, and what a host answers
 */
export async function replaceCredentials(
  deps: Deps,
  ref: { accountId: string; diskId: string; mountId: string },
  given: BucketCredentials,
  context: RequestContext,
): Promise<DiskEntry> {
  const { accountId, diskId, mountId } = ref;
  const { record } = await findDisk(deps, accountId, diskId);
  const mount = record.mounts?.find(({ id }) => id === mountId);
  if (mount === undefined) {
    throw new AppError('not_found', `disk ${diskId} has no mount ${mountId}`);
  }
  const credentials = checkCredentials(mount.type, given);
  const sealedCredentials = sealCredentials(deps, diskId, mountId, credentials);
  const mounts = [{ ...mount, sealedCredentials }];
  if (!(await deps.directory.disks.setMounts({ accountId, id: diskId }, mounts))) {
    throw new AppError('not_found', `disk ${diskId} not found`);
  }
  const payload = { accountId, diskId };
  await recordDisk(deps, payload, context);
  const job = { kind: 'disk.checkMount' as const, payload };
  await callDiskHost(deps, [await findDisk(deps, accountId, diskId)], job, context);
  return findDisk(deps, accountId, diskId);
}
