import { AppError, errnoOf, toError } from '../../../shared/errors.ts';
import { BucketError } from './bucket.ts';
import { ADDRESS_REFUSED } from './reachable-lookup.ts';

const AUTH: ReadonlyMap<string, string> = new Map([
  ['InvalidAccessKeyId', 'the access key is unknown to the storage'],
  ['SignatureDoesNotMatch', 'the secret does not belong to the access key'],
  ['AccessDenied', 'the credentials do not allow this'],
  ['Forbidden', 'the credentials do not allow this'],
  ['ExpiredToken', 'the temporary credentials have expired'],
  ['InvalidToken', 'the session token is not valid'],
  ['AuthorizationHeaderMalformed', 'the storage does not accept the signature'],
  ['RequestTimeTooSkewed', 'the clock of this host differs from that of the storage'],
  ['AccountProblem', 'the account of the storage is not in order'],
  // Codes of Azure.
  ['AuthenticationFailed', 'the storage does not accept the token of the application'],
  ['InvalidAuthenticationInfo', 'the storage does not accept the token of the application'],
  ['AuthorizationFailure', 'the credentials do not allow this'],
  ['AuthorizationPermissionMismatch', 'the credentials do not allow this'],
  ['InsufficientAccountPermissions', 'the credentials do not allow this'],
]);
const BUSY = new Set([
  'SlowDown',
  'ServiceUnavailable',
  'Throttling',
  'ThrottlingException',
  'TooManyRequests',
  'RequestLimitExceeded',
]);
const AWAY =
  /^(?:ECONNREFUSED|ECONNRESET|ECONNABORTED|EPIPE|ETIMEDOUT|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|UND_ERR_\w+|ERR_SSL_\w+|CERT_\w+|DEPTH_ZERO_SELF_SIGNED_CERT|UNABLE_TO_\w+|SELF_SIGNED_\w+)$/u;

const field = (error: Error, name: string): unknown => Reflect.get(error, name);

function statusOf(error: Error): number {
  const status: unknown = field(error, 'statusCode'); // Azure's errors carry their status here.
  if (typeof status === 'number') return status;
  const metadata: unknown = field(error, '$metadata');
  if (typeof metadata !== 'object' || metadata === null) return 0;
  return Number(Reflect.get(metadata, 'httpStatusCode') ?? 0);
}

/** Turns what an SDK throws into words; the SDK's own error is the cause. */
export function explainFailure(thrown: unknown): BucketError {
  if (thrown instanceof BucketError) return thrown;
  // No turn came in time: the storage or the host has too much to do.
  if (thrown instanceof AppError) return new BucketError('busy', thrown.message, { cause: thrown });
  const error = toError(thrown);
  const options = { cause: error };
  const code = errnoOf(error) ?? '';
  const { name } = error;
  const status = statusOf(error);
  const auth = AUTH.get(name) ?? AUTH.get(code);
  if (auth !== undefined) return new BucketError('auth', auth, options);
  if (code === ADDRESS_REFUSED) return new BucketError('away', error.message, options);
  if (name === 'NoSuchBucket' || code === 'ContainerNotFound') {
    return new BucketError('missing', 'there is no such bucket', options);
  }
  if (name === 'NoSuchKey' || name === 'NotFound' || status === 404) {
    return new BucketError('missing', 'the storage has no such bucket or object', options);
  }
  if (name === 'PreconditionFailed' || status === 412 || code === 'BlobAlreadyExists') {
    return new BucketError('changed', 'the object was changed meanwhile', options);
  }
  if (status === 401 || status === 403) {
    return new BucketError(
      'auth',
      `the storage refuses the credentials (${code === '' ? name : code})`,
      options,
    );
  }
  if (BUSY.has(name) || status === 503 || status === 429) {
    return new BucketError('busy', 'the storage asks for fewer requests (SlowDown)', options);
  }
  if (AWAY.test(code) || name === 'TimeoutError' || name === 'AbortError') {
    const detail = code === '' ? 'no answer in time' : code;
    return new BucketError('away', `the storage cannot be reached (${detail})`, options);
  }
  if (name === 'NotImplemented' || status === 501) {
    return new BucketError('unsupported', 'the storage does not know the request', options);
  }
  if (status >= 500) {
    return new BucketError('away', `the storage failed (${status} ${name})`, options);
  }
  // A failure of the disk itself: full, or broken.
  const isLocal = status === 0 && /^E[A-Z]+$/u.test(code);
  if (isLocal) return new BucketError('disk', `the disk itself fails (${code})`, options);
  const detail = status === 0 ? name : `${status} ${name}`;
  return new BucketError('other', `the storage answered with an error (${detail})`, options);
}

/** Does some work of an SDK. @throws BucketError */
export async function explained<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw explainFailure(error);
  }
}
