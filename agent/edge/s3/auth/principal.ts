import { hash, timingSafeEqual } from 'node:crypto';
import type { Authenticator } from '../../../../shared/directory/authenticator.ts';
import {
  type DiskEntry,
  type DiskRecord,
  isInForce,
} from '../../../../shared/directory/disk-record.ts';
import type { DiskRef } from '../../../../shared/directory/disk-user-index.ts';
import type { Disks } from '../../../../shared/directory/disks.ts';
import { AppError } from '../../../../shared/errors.ts';
import { isWithin, type KeyScope } from '../../../../shared/key-scopes.ts';
import { diskIdPattern } from '../../../../shared/ids.ts';
import { isAllowed } from '../../../../shared/http/ip-allowlist.ts';
import { DIRECTORY_LIMITS } from '../../../../shared/directory/limits.ts';
import { isSignedForm, type PostForm, type PostPolicy, readSignedForm } from './post-policy.ts';
import type { RequestHead } from './canonical-request.ts';
import type { DiskTokens } from './disk-tokens.ts';
import { S3Error } from '../protocol/errors.ts';
import { headerValue } from '../protocol/raw-headers.ts';
import {
  type Payload,
  readPayload,
  readSignature,
  type SignatureClaim,
  type VerifiedSignature,
  verifySignature,
} from './sigv4.ts';

export interface PrincipalDeps {
  readonly disks: Disks;
  readonly authenticator: Authenticator;
  readonly tokens: DiskTokens;
}

/** The identity behind a request: an account with its API key, or a disk user with its token. */
export type Principal = AccountKey | DiskUser;

interface AccountKey {
  readonly kind: 'account';
  readonly accountId: string;
  readonly keyId: string;
  readonly scopes: readonly KeyScope[];
}

interface DiskUser {
  readonly kind: 'disk_user';
  readonly identifier: string;
  /** The disk token with which it signed. */
  readonly secret: string;
  /** The account of a disk that has the user. */
  readonly accountId: string;
  /** The disks that may have the user; only their records say whether they do. */
  readonly refs: readonly DiskRef[];
  /** The entry of the request's bucket, if it is one of them. */
  readonly disk: DiskEntry | undefined;
}

export interface Admission {
  readonly principal: Principal;
  readonly payload: Payload;
  /** For checking the signatures of a signed body's chunks. */
  readonly signature?: VerifiedSignature;
  /** The policy of the form that was signed; it binds the upload. */
  readonly policy?: PostPolicy;
}

/** How many disks are asked for a token. Those whose user has ended are not asked again. */
const ENTRIES_TRIED = 100;
const UNSIGNED: Payload = { kind: 'unsigned' };
const diskId = new RegExp(diskIdPattern, 'u');

const isAvailable = (entry: DiskEntry | undefined): entry is DiskEntry =>
  entry !== undefined && entry.record.status === 'available';

/** The secret of the disk's token user with this identifier, if there is one. */
const sealedTokenOf = ({ users }: DiskRecord, identifier: string): string | undefined =>
  users.find((user) => user.type === 'token' && user.identifier === identifier && isInForce(user))
    ?.sealedToken;

/** A token with which a request may be signed, and the disk that has it. */
interface Token extends DiskRef {
  readonly sealed: string;
}

function tokenOf(disk: DiskEntry | undefined, identifier: string): Token | undefined {
  const sealed = disk && sealedTokenOf(disk.record, identifier);
  if (disk === undefined || sealed === undefined) return undefined;
  return { sealed, accountId: disk.record.accountId, id: disk.record.id };
}

/** Disks with the same identifier have the same token, so any of them shows who signed. */
async function findToken(
  { disks }: PrincipalDeps,
  identifier: string,
  refs: readonly DiskRef[],
): Promise<Token | undefined> {
  for (const ref of refs.slice(0, ENTRIES_TRIED)) {
    // Only the user is read, not its disk: callers have proved nothing yet.
    const user = await disks.tokenUser(ref, identifier);
    if (user === undefined) continue;
    if (user.sealedToken !== undefined && isInForce(user))
      return { sealed: user.sealedToken, ...ref };
    await disks.forgetEnded(ref, identifier);
  }
  return undefined;
}

/** The user's disks among some that may be. */
async function disksOfUser(
  { disks }: PrincipalDeps,
  identifier: string,
  refs: readonly DiskRef[],
): Promise<DiskEntry[]> {
  const entries = await Promise.all(refs.map(({ accountId, id }) => disks.get(accountId, id)));
  return entries
    .filter(isAvailable)
    .filter(({ record }) => sealedTokenOf(record, identifier) !== undefined);
}

/** SigV4 with a disk user: the access key is its identifier, the secret its disk token. */
async function admitDiskUser(
  deps: PrincipalDeps,
  claim: SignatureClaim,
  bucket: string,
): Promise<Admission> {
  const { accessKeyId: identifier, payload } = claim;
  const refs = await deps.disks.ofTokenUser(identifier);
  const named = refs.filter(({ id }) => id === bucket);
  const [disk] = await disksOfUser(deps, identifier, named);
  const token =
    named.length > 0 ? tokenOf(disk, identifier) : await findToken(deps, identifier, refs);
  if (token === undefined) {
    throw new S3Error(
      'InvalidAccessKeyId',
      'No disk has a token user with this access key. Users of other types sign in through their cloud, which this server lacks; use a disk token.',
    );
  }
  const { sealed, id, accountId } = token;
  const signature = verifySignature(claim, deps.tokens.signingKey(sealed, id, claim.scope));
  const secret = deps.tokens.open(sealed, id);
  const principal = { kind: 'disk_user', accountId, identifier, secret, refs, disk } as const;
  return { principal, payload, signature };
}

/**
 * Checks the credentials of a request: an API key as REST takes it, or AWS Signature Version 4 with
 * a disk user (docs/object-api.md, Credentials).
 * @param bucket of the request; empty for the list of buckets
 * @param form the fields of the form of PostObject, which may carry a signed policy. A policy says
 *   nothing about any other operation, so the form of another one must not be given here
 * @throws S3Error AccessDenied, InvalidAccessKeyId, and those of SigV4
 */
export async function authenticate(
  deps: PrincipalDeps,
  head: RequestHead,
  bucket: string,
  form?: PostForm,
): Promise<Admission> {
  const now = Date.now();
  const signed = readSignature(head, now);
  const isForm = form !== undefined && isSignedForm(form);
  if (isForm && (signed ?? headerValue(head.rawHeaders, 'authorization')) !== undefined) {
    throw new S3Error('InvalidArgument', 'Only one way to authorize may be used at a time.');
  }
  if (isForm) {
    const { claim, policy } = readSignedForm(form, now);
    return { ...(await admitDiskUser(deps, claim, bucket)), policy };
  }
  if (signed !== undefined) return admitDiskUser(deps, signed, bucket);
  try {
    const header = headerValue(head.rawHeaders, 'authorization') ?? '';
    const { accountId, keyId, scopes } = await deps.authenticator.authenticate(header);
    const declared = headerValue(head.rawHeaders, 'x-amz-content-sha256');
    const payload = declared === undefined ? UNSIGNED : readPayload(declared);
    return { principal: { kind: 'account', accountId, keyId, scopes }, payload };
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== 'unauthorized') throw error;
    throw new S3Error('AccessDenied', `Access denied: ${error.message}.`, { cause: error });
  }
}

/** The disks that a principal reaches. */
export async function reachableDisks(
  deps: PrincipalDeps,
  principal: Principal,
  address: string,
): Promise<DiskEntry[]> {
  if (principal.kind === 'account') {
    const found: DiskEntry[] = [];
    for (let cursor: string | undefined, isDone = false; !isDone; isDone = cursor === undefined) {
      const page = await deps.disks.list(principal.accountId, { cursor });
      found.push(...page.items);
      cursor = page.nextCursor;
    }
    return found.filter(isAvailable);
  }
  const refs = principal.refs.slice(0, DIRECTORY_LIMITS.unpagedListMax);
  const known = await disksOfUser(deps, principal.identifier, refs);
  return known.filter(({ record }) => isAllowed(record.allowedIps, address));
}

/**
 * The disk of a bucket, if the principal may use it from there. The allowed addresses bind the
 * users of the disk, not API keys (docs/api.md, allowed-ips).
 * @throws S3Error NoSuchBucket, AccessDenied
 */
export async function authorize(
  deps: PrincipalDeps,
  principal: Principal,
  bucket: string,
  address: string,
): Promise<DiskEntry> {
  if (principal.kind === 'account') {
    const isId = diskId.test(bucket);
    const entry = isId ? await deps.disks.get(principal.accountId, bucket) : undefined;
    if (!isAvailable(entry)) throw new S3Error('NoSuchBucket');
    return entry;
  }
  const entry = principal.disk;
  // The same for a disk that exists: a user of one disk must not learn of others.
  if (entry?.record.id !== bucket) throw new S3Error('NoSuchBucket');
  if (!isAllowed(entry.record.allowedIps, address)) {
    throw new S3Error('AccessDenied', `Access denied: the disk is not open to ${address}.`);
  }
  return entry;
}

/**
 * Users of a disk may change it; API keys may only with the scope for that.
 * @throws S3Error AccessDenied
 */
export function assertMayChange(principal: Principal): void {
  if (principal.kind === 'disk_user' || isWithin('disk', principal.scopes)) return;
  throw new S3Error('AccessDenied', 'Access denied: this needs an API key with the scope disk.');
}

/**
 * The disk of another bucket than the request's own, such as the source of a copy, if the same
 * principal may use it from there.
 * @throws S3Error as `authorize`
 */
export async function authorizeOther(
  deps: PrincipalDeps,
  principal: Principal,
  bucket: string,
  address: string,
): Promise<DiskEntry> {
  if (principal.kind === 'account') return authorize(deps, principal, bucket, address);
  const { identifier, secret, refs } = principal;
  const named = refs.filter(({ id }) => id === bucket);
  const known = await disksOfUser(deps, identifier, named);
  const disk = known.find(({ record }) => {
    const sealed = sealedTokenOf(record, identifier);
    if (sealed === undefined) return false;
    return secretsMatch(deps.tokens.open(sealed, record.id), secret);
  });
  return authorize(deps, { ...principal, disk }, bucket, address);
}

/** In constant time. */
const secretsMatch = (a: string, b: string): boolean =>
  timingSafeEqual(hash('sha256', a, 'buffer'), hash('sha256', b, 'buffer'));

/**
 * @param expected the owner that a request expects the bucket to have, as ListBuckets shows it
 * @throws S3Error AccessDenied when the bucket has another owner
 */
export function assertOwner({ record }: DiskEntry, expected: string | undefined): void {
  if (expected === undefined || expected === record.organization) return;
  throw new S3Error('AccessDenied', 'Access denied: the bucket has another owner.');
}
