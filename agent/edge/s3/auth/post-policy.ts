import { toError } from '../../../../shared/errors.ts';
import { parseJson } from '../../../../shared/json.ts';
import { EDGE_LIMITS } from '../../limits.ts';
import { S3Error } from '../protocol/errors.ts';
import { readCredential, readTimestamp } from './sigv4-fields.ts';
import type { SignatureClaim } from './sigv4.ts';

/*
 * Forms that upload an object from a browser: "Browser-Based Uploads Using POST (AWS Signature
 * Version 4)" in the S3 API reference. Not the request is signed but a policy, which says what the
 * fields of the form may be.
 */

/** The fields before the file of a form that uploads an object (PostObject of S3). */
export interface PostForm {
  /** Names in lower case. */
  readonly fields: ReadonlyMap<string, string>;
  /** Name of the file as the browser has it; without directories. */
  readonly fileName: string;
}

/** Fields that no condition needs to name. */
const FREE = /^(?:policy|x-amz-signature|file|x-ignore-.*)$/u;

interface Condition {
  readonly kind: 'eq' | 'starts-with';
  readonly field: string;
  readonly value: string;
}

export interface PostPolicy {
  readonly conditions: readonly Condition[];
  readonly lengthRange: readonly [min: number, max: number] | undefined;
}

const malformed = (why: string, cause?: unknown): S3Error =>
  new S3Error('InvalidPolicyDocument', `The policy of the form is not valid: ${why}.`, { cause });

const failed = (why: string): S3Error =>
  new S3Error('AccessDenied', `Invalid according to Policy: ${why}.`);

/** Whether a form carries credentials of its own. */
export const isSignedForm = ({ fields }: PostForm): boolean => fields.has('policy');

const invalid = (why: string): S3Error => new S3Error('InvalidArgument', `The form: ${why}.`);

/** Claims of a signed form, and the policy that was signed. */
export interface SignedForm {
  readonly claim: SignatureClaim;
  readonly policy: PostPolicy;
}

/**
 * Reads the claims of a form and its policy; the signature has not been verified yet.
 *
 * The signature covers the policy alone, with the same key as every other SigV4 signature of the
 * user. The policy is therefore parsed here, before it can admit anybody: canonical base64 of a
 * policy document can never be the text that another kind of request was signed with.
 * @param now milliseconds since the epoch
 * @throws S3Error AccessDenied, InvalidArgument, InvalidPolicyDocument
 */
export function readSignedForm({ fields }: PostForm, now: number): SignedForm {
  const required = (name: string): string => {
    const value = fields.get(name) ?? '';
    if (value === '') throw new S3Error('AccessDenied', `The form has a policy but no ${name}.`);
    return value;
  };
  if (required('x-amz-algorithm') !== 'AWS4-HMAC-SHA256') throw invalid('unknown algorithm');
  const { accessKeyId, scope } = readCredential(required('x-amz-credential'), invalid);
  const time = readTimestamp(required('x-amz-date'));
  const signature = required('x-amz-signature');
  if (time?.timestamp.slice(0, 8) !== scope.date)
    throw invalid("x-amz-date is not the credential's");
  if (!/^[0-9a-f]{64}$/u.test(signature)) throw invalid('x-amz-signature is not hex');
  if (time.epochMs - now > EDGE_LIMITS.signatureClockSkewMsMax)
    throw failed('Policy not valid yet');
  if (now - time.epochMs > EDGE_LIMITS.presignedSecondsMax * 1000) throw failed('Policy expired');
  const stringToSign = required('policy');
  const claim: SignatureClaim = {
    ...{ accessKeyId, scope, signature, timestamp: time.timestamp, signedHeaders: [] },
    ...{ payload: { kind: 'unsigned' }, stringToSign },
  };
  return { claim, policy: readPolicy(stringToSign, now) };
}

function readCondition(entry: unknown): Condition | readonly [number, number] {
  if (Array.isArray(entry) && entry.length === 3) {
    const [kind, name, value] = (entry as unknown[]).map((part) =>
      typeof part === 'number' ? String(part) : part,
    );
    if (typeof kind !== 'string' || typeof name !== 'string' || typeof value !== 'string') {
      throw malformed('a condition is not text');
    }
    const lower = kind.toLowerCase();
    if (lower === 'content-length-range') {
      if (!/^\d{1,15}$/u.test(name) || !/^\d{1,15}$/u.test(value))
        throw malformed('bad length range');
      return [Number(name), Number(value)];
    }
    if ((lower !== 'eq' && lower !== 'starts-with') || !name.startsWith('$')) {
      throw malformed(`unknown condition ${kind}`);
    }
    return { kind: lower, field: name.slice(1).toLowerCase(), value };
  }
  const [pair, ...others] = Object.entries(
    typeof entry === 'object' && entry !== null ? entry : {},
  );
  const [field, value] = pair ?? [];
  if (
    field === undefined ||
    typeof value !== 'string' ||
    others.length > 0 ||
    Array.isArray(entry)
  ) {
    throw malformed('a condition is neither a list of three nor an object of one');
  }
  return { kind: 'eq', field: field.toLowerCase(), value };
}

/**
 * Reads the policy of a form and checks its expiration.
 * @param text canonical base64 (RFC 4648, section 3.5), so that no text means two policies
 * @throws S3Error InvalidPolicyDocument, AccessDenied
 */
function readPolicy(text: string, now: number): PostPolicy {
  const bytes = Buffer.from(text, 'base64');
  if (bytes.toString('base64') !== text) throw malformed('it is not base64');
  let policy: unknown;
  try {
    policy = parseJson(bytes.toString('utf8'));
  } catch (error) {
    throw malformed(toError(error).message, error);
  }
  const { expiration, conditions } = (policy ?? {}) as Record<string, unknown>;
  const expiresAt = typeof expiration === 'string' ? Date.parse(expiration) : Number.NaN;
  if (Number.isNaN(expiresAt)) throw malformed('it has no expiration');
  if (!Array.isArray(conditions)) throw malformed('it has no conditions');
  if (now > expiresAt) throw failed('Policy expired');
  const read = conditions.map(readCondition);
  const ranges = read.flatMap((each) => ('kind' in each ? [] : [each]));
  if (ranges.length > 1) throw malformed('it has several length ranges');
  return {
    conditions: read.flatMap((each) => ('kind' in each ? [each] : [])),
    lengthRange: ranges[0],
  };
}

/**
 * Checks the fields of a form against its policy: each condition must hold, and each field be
 * named, the bucket among them, as in S3: disks of one user may share its token.
 * @param values of the fields, and of what the request itself says: bucket and key
 * @throws S3Error AccessDenied
 */
export function checkPolicy({ conditions }: PostPolicy, values: ReadonlyMap<string, string>): void {
  for (const { kind, field, value } of conditions) {
    const given = values.get(field) ?? '';
    const holds = kind === 'eq' ? given === value : given.startsWith(value);
    if (!holds) throw failed(`Policy Condition failed: ["${kind}", "$${field}", "${value}"]`);
  }
  const named = new Set(conditions.map(({ field }) => field));
  for (const field of values.keys()) {
    if (!FREE.test(field) && !named.has(field)) {
      throw failed(`Extra input fields: ${field}`);
    }
  }
}
