import { create as contentDisposition } from 'content-disposition';
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import Type from 'typebox';
import { FILE_RESPONSE_HEADERS } from '../../shared/links/data-protocol.ts';
import { type Caller, endWithKey } from '../../shared/directory/api-keys.ts';
import { AppError } from '../../shared/errors.ts';
import { accountIdPattern, diskIdPattern } from '../../shared/ids.ts';
import { SCHEMA_LIMITS } from '../../shared/schemas/limits.ts';
import type { CreateShareUrl, ShareUrl } from '../../shared/schemas/share.ts';
import { signToken, verifyToken } from '../../shared/secrets.ts';
import { compile } from '../../shared/validate.ts';
import type { Deps } from '../region/deps.ts';
import { RefusedRequest } from '../region/refused-request.ts';
import type { Readable } from 'node:stream';
import { callDiskHost, type RequestContext, withDiskHost } from '../region/call-disk-host.ts';
import { findDisk } from '../region/find-disk.ts';

const PURPOSE = 'share';

/** Shared content is not trusted: browsers must not run it in the origin of the API. */
const SAFETY_HEADERS = {
  'content-security-policy': "default-src 'none'; sandbox",
  'x-content-type-options': 'nosniff',
  'cross-origin-resource-policy': 'cross-origin', // A media element of another page may play it.
  'referrer-policy': 'no-referrer', // The link itself is the credential.
  // Nobody keeps it for others, nor past its expiry, nor compresses it: that would take its length
  // away.
  'cache-control': 'private, no-cache, no-transform',
} as const;

const ShareClaims = Type.Object({
  accountId: Type.String({ pattern: accountIdPattern }),
  diskId: Type.String({ pattern: diskIdPattern }),
  key: Type.String({ minLength: 1, maxLength: SCHEMA_LIMITS.shareKeyBytesMax }),
  /** The API key that made the link; links of earlier versions name none. */
  keyId: Type.Optional(Type.String({ pattern: '^[0-9a-f]{64}$' })),
});
/** The content of a link's token: one file of one disk. */
export type SharedFile = Type.Static<typeof ShareClaims>;

const checkClaims = compile(ShareClaims);

const badKey = (reason: string): AppError => new AppError('bad_request', `key ${reason}`);

/** @throws AppError `bad_request` unless the key is a plain path; slashes at its beginning go */
function toFileKey(given: string): string {
  const key = given.replace(/^\/+/u, '');
  if (Buffer.byteLength(given) > SCHEMA_LIMITS.shareKeyBytesMax) {
    throw badKey(`is longer than ${SCHEMA_LIMITS.shareKeyBytesMax} bytes`);
  }
  if (key.includes('\0')) throw badKey('contains a NUL character');
  for (const segment of key.split('/')) {
    if (segment === '') throw badKey('has an empty segment');
    if (segment === '.' || segment === '..') throw badKey(`has a "${segment}" segment`);
  }
  return key;
}

/**
 * Makes a share link to one file (docs/api.md, POST /api/disks/{id}/share).
 * @throws AppError `not_found` for disk or file, `bad_request`, `unavailable`
 */
export async function createShareUrl(
  deps: Deps,
  { caller, diskId }: { caller: Caller; diskId: string },
  { key: given, expiresIn: wanted = SCHEMA_LIMITS.shareTtlSecondsDefault }: CreateShareUrl,
  context: RequestContext,
): Promise<ShareUrl> {
  const key = toFileKey(given);
  const { accountId, keyId } = caller;
  const disk = await findDisk(deps, accountId, diskId);
  const file = { accountId, diskId, key };
  await callDiskHost(deps, [disk], { kind: 'disk.stat', payload: file }, context);
  const { signingKeys, publicBaseUrl } = deps.config;
  const now = Date.now();
  const expiresAt = endWithKey(caller, now + wanted * 1000) ?? now;
  const expiresIn = Math.max(1, Math.floor((expiresAt - now) / 1000));
  const token = signToken(signingKeys, PURPOSE, { ...file, keyId }, expiresAt);
  return { url: `${publicBaseUrl.replace(/\/+$/u, '')}/api/shared/${token}`, expiresIn };
}

/** @throws AppError `forbidden` when the token was not made here, `expired` */
export function readShareToken(deps: Deps, token: string): SharedFile {
  const claims = verifyToken(deps.config.signingKeys, PURPOSE, token);
  if (claims === 'expired') throw new AppError('expired', 'this link has expired');
  if (claims === 'invalid') throw new AppError('forbidden', 'this link is not valid');
  return checkClaims(claims, 'link');
}

/**
 * Origins whose pages may read the shared file, as its disk lists them; none for a link that is
 * invalid.
 */
export async function originsOfShared(deps: Deps, token: string): Promise<readonly string[]> {
  const claims = verifyToken(deps.config.signingKeys, PURPOSE, token);
  if (typeof claims === 'string') return [];
  const { accountId, diskId } = checkClaims(claims, 'link');
  const disk = await deps.directory.disks.get(accountId, diskId);
  return disk?.record.allowedOrigins ?? [];
}

/** Links cannot be listed or revoked, so they end with the key that made them. */
async function checkMaker({ directory }: Deps, { keyId }: SharedFile): Promise<void> {
  if (keyId === undefined || (await directory.apiKeys.isValid(keyId))) return;
  throw new AppError('forbidden', 'the API key that made this link is gone');
}

interface Download {
  readonly method: 'GET' | 'HEAD';
  readonly headers: IncomingHttpHeaders;
  readonly address: string;
  readonly requestId: string;
  readonly signal: AbortSignal;
}

/** The file that a link's visitor downloads. */
interface SharedStream {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /** Ended or broken off by whoever sends it on. */
  readonly stream: Readable;
}

/**
 * The shared file, or the parts of it that are asked for, from the disk's lease holder.
 * @throws AppError `forbidden`, `not_found`, `precondition_failed`, `range_not_satisfiable`,
 *   `unavailable`, `no_capacity`, `rate_limited`, `cancelled`
 */
export async function openShared(
  deps: Deps,
  file: SharedFile,
  download: Download,
): Promise<SharedStream> {
  await checkMaker(deps, file);
  try {
    const disk = await findDisk(deps, file.accountId, file.diskId);
    const answer = await withDiskHost(deps, [disk], download, (hostId) =>
      deps.data.open({ ...file, ...download, hostId }),
    );
    return toReply(answer, file.key);
  } catch (error) {
    // A missing file and one that became a directory look the same to whoever has the link.
    const isGone =
      error instanceof AppError && (error.code === 'not_found' || error.code === 'bad_request');
    throw isGone ? new AppError('not_found', 'the shared file is not there any more') : error;
  }
}

function toReply(answer: IncomingMessage, key: string): SharedStream {
  const said = Object.fromEntries(
    FILE_RESPONSE_HEADERS.flatMap((name): [string, string][] => {
      const value = answer.headers[name];
      return typeof value === 'string' ? [[name, value]] : [];
    }),
  );
  const headers = { ...said, ...SAFETY_HEADERS };
  switch (answer.statusCode) {
    case 200:
    case 206: {
      const name = key.split('/').at(-1);
      const disposition = { 'content-disposition': contentDisposition(name) };
      return { status: answer.statusCode, headers: { ...headers, ...disposition }, stream: answer };
    }
    case 304: {
      return { status: 304, headers, stream: answer };
    }
    case 412: {
      answer.resume();
      throw new RefusedRequest('precondition_failed', 'the file has changed', { headers });
    }
    case 416: {
      answer.resume();
      throw new RefusedRequest('range_not_satisfiable', 'the file has no such part', { headers });
    }
    default: {
      answer.destroy();
      throw new Error(`the host answered ${answer.statusCode}`);
    }
  }
}
