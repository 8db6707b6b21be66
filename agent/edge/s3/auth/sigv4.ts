import { type KeyObject, timingSafeEqual } from 'node:crypto';
import { EDGE_LIMITS } from '../../limits.ts';
import {
  hashCanonicalRequest,
  SIGNATURE_PARAMETER,
  splitTarget,
  type RequestHead,
  type Target,
} from './canonical-request.ts';
import { S3Error } from '../protocol/errors.ts';
import {
  headerNames,
  headerValue,
  headerValues,
  isObjectHeader,
  type RawHeaders,
} from '../protocol/raw-headers.ts';
import { readCredential, readTimestamp, type RequestTime } from './sigv4-fields.ts';
import { hmac, type Scope } from './sigv4-key.ts';

/*
 * AWS Signature Version 4 as S3 has it: "Authenticating Requests (AWS Signature Version 4)" in the
 * S3 API reference, in its header form and in its query form (presigned URLs).
 *
 * Everything is computed from the request as it was received, so a proxy before this must leave
 * path, query and Host alone.
 */

const ALGORITHM = 'AWS4-HMAC-SHA256';
const SIGNED_HEADERS_MAX = 128;

/** How the request declares its body (`x-amz-content-sha256`). */
export type Payload =
  | { readonly kind: 'unsigned' }
  | { readonly kind: 'sha256'; readonly sha256: string }
  | { readonly kind: 'aws-chunked'; readonly signed: boolean; readonly trailer: boolean };

/** The claims of a signed request; nothing has been verified yet. */
export interface SignatureClaim {
  readonly accessKeyId: string;
  readonly scope: Scope;
  /** The time of signing, as `20130524T000000Z`. */
  readonly timestamp: string;
  readonly signedHeaders: readonly string[];
  readonly payload: Payload;
  /** Hex; the seed of the chain of chunk signatures. */
  readonly signature: string;
  /** The text whose HMAC the signature must be. */
  readonly stringToSign: string;
}

/** A request whose signature was verified, with what is needed to verify its chunks. */
export interface VerifiedSignature extends SignatureClaim {
  readonly signingKey: KeyObject;
}

interface Fields {
  readonly credential: string;
  readonly signedHeaders: string;
  readonly signature: string;
}

const invalid = (message: string): S3Error => new S3Error('InvalidArgument', message);

const malformedHeader = (why: string): S3Error =>
  new S3Error('AuthorizationHeaderMalformed', `The authorization header is malformed: ${why}.`);

const malformedQuery = (why: string): S3Error =>
  new S3Error(
    'AuthorizationQueryParametersError',
    `The authorization query parameters are malformed: ${why}.`,
  );

function readSignedHeaders(
  list: string,
  headers: RawHeaders,
  malformed: Parts['malformed'],
): string[] {
  const signed = list.split(';', SIGNED_HEADERS_MAX + 1);
  const isList = signed.every((name) => /^[!#$%&'*+.^_`|~0-9a-z-]+$/.test(name));
  const isUnique = new Set(signed).size === signed.length;
  if (!isList || !isUnique || signed.length > SIGNED_HEADERS_MAX) {
    throw malformed('the list of signed headers');
  }
  if (!signed.includes('host')) throw new S3Error('AccessDenied', 'The host must be signed.');
  // These headers change what the request does, so the signature must cover them.
  const unsigned = headerNames(headers).filter(
    (name) => isObjectHeader(name) && !signed.includes(name),
  );
  if (unsigned.length > 0) {
    const names = unsigned.join(', ');
    throw new S3Error('AccessDenied', `There were headers which were not signed: ${names}`);
  }
  return signed;
}

/** @param declared the value of `x-amz-content-sha256` @throws S3Error InvalidArgument */
export function readPayload(declared: string): Payload {
  switch (declared) {
    case 'UNSIGNED-PAYLOAD':
      return { kind: 'unsigned' };
    case 'STREAMING-AWS4-HMAC-SHA256-PAYLOAD':
      return { kind: 'aws-chunked', signed: true, trailer: false };
    case 'STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER':
      return { kind: 'aws-chunked', signed: true, trailer: true };
    case 'STREAMING-UNSIGNED-PAYLOAD-TRAILER':
      return { kind: 'aws-chunked', signed: false, trailer: true };
    default:
      if (/^[0-9a-fA-F]{64}$/.test(declared)) {
        return { kind: 'sha256', sha256: declared.toLowerCase() };
      }
      throw invalid('x-amz-content-sha256 is neither a SHA-256 in hex nor a known constant.');
  }
}

interface Parts {
  readonly head: RequestHead;
  readonly target: Target;
  readonly fields: Fields;
  readonly time: RequestTime;
  readonly declaredPayload: string;
  /** The error for a malformed field. */
  readonly malformed: (why: string) => S3Error;
}

function makeClaim(parts: Parts): SignatureClaim {
  const { head, target, fields, time, declaredPayload, malformed } = parts;
  const { accessKeyId, scope } = readCredential(fields.credential, malformed);
  if (scope.date !== time.timestamp.slice(0, 8)) {
    throw malformed('the date of the credential is not that of the request');
  }
  if (!/^[0-9a-f]{64}$/.test(fields.signature)) throw malformed('the signature is not hex');
  const signedHeaders = readSignedHeaders(fields.signedHeaders, head.rawHeaders, malformed);
  const hash = hashCanonicalRequest(head, target, signedHeaders, declaredPayload);
  return {
    accessKeyId,
    scope,
    timestamp: time.timestamp,
    signedHeaders,
    payload: readPayload(declaredPayload),
    signature: fields.signature,
    stringToSign: [ALGORITHM, time.timestamp, scope.text, hash].join('\n'),
  };
}

function readAuthorization(text: string): Fields {
  const fields = new Map<string, string>();
  for (const pair of text.slice(ALGORITHM.length).split(',', 4)) {
    const [, name = '', value = ''] = /^\s*([A-Za-z]+)=(\S+)\s*$/.exec(pair) ?? [];
    if (fields.has(name)) throw malformedHeader(`${name} appears twice`);
    fields.set(name, value);
  }
  const credential = fields.get('Credential');
  const signedHeaders = fields.get('SignedHeaders');
  const signature = fields.get('Signature');
  if (!credential || !signedHeaders || !signature || fields.size > 3) {
    throw malformedHeader('it must have Credential, SignedHeaders and Signature');
  }
  return { credential, signedHeaders, signature };
}

function claimOfHeader(head: RequestHead, authorization: string, now: number): SignatureClaim {
  if (!authorization.startsWith(`${ALGORITHM} `)) {
    throw new S3Error('InvalidRequest', `Only ${ALGORITHM} is supported.`);
  }
  const fields = readAuthorization(authorization);
  const date = headerValue(head.rawHeaders, 'x-amz-date') ?? headerValue(head.rawHeaders, 'date');
  const time = readTimestamp(date ?? '');
  if (time === undefined) {
    throw new S3Error('AccessDenied', 'A valid Date or x-amz-date header is required.');
  }
  if (Math.abs(time.epochMs - now) > EDGE_LIMITS.signatureClockSkewMsMax)
    throw new S3Error('RequestTimeTooSkewed');
  const declaredPayload = headerValue(head.rawHeaders, 'x-amz-content-sha256');
  if (declaredPayload === undefined) {
    throw new S3Error('InvalidRequest', 'The header x-amz-content-sha256 is required.');
  }
  const target = splitTarget(head.target);
  return makeClaim({ head, target, fields, time, declaredPayload, malformed: malformedHeader });
}

function checkPresignedTime(time: RequestTime, seconds: string, now: number): void {
  const isNumber = /^[0-9]{1,6}$/.test(seconds);
  if (!isNumber || Number(seconds) < 1 || Number(seconds) > EDGE_LIMITS.presignedSecondsMax) {
    throw new S3Error(
      'AuthorizationQueryParametersError',
      `X-Amz-Expires must be a number from 1 to ${EDGE_LIMITS.presignedSecondsMax}.`,
    );
  }
  if (time.epochMs - now > EDGE_LIMITS.signatureClockSkewMsMax) {
    throw new S3Error('AccessDenied', 'Request is not valid yet');
  }
  if (now > time.epochMs + Number(seconds) * 1000) {
    throw new S3Error('AccessDenied', 'Request has expired');
  }
}

function claimOfQuery(head: RequestHead, now: number): SignatureClaim {
  const target = splitTarget(head.target);
  const optional = (name: string): string | undefined => {
    const found = target.parameters.filter((parameter) => parameter[0] === name);
    if (found.length > 1) throw malformedQuery(`${name} appears twice`);
    const value = found[0]?.[1];
    // Only bytes that a header could carry as well; anything else fits none of these fields.
    return value?.replaceAll(/%([2-7][0-9A-F])/g, (_escape, hex: string) =>
      String.fromCharCode(Number.parseInt(hex, 16)),
    );
  };
  const required = (name: string): string => {
    const value = optional(name);
    if (value === undefined || value === '') throw malformedQuery(`${name} is missing`);
    return value;
  };
  if (required('X-Amz-Algorithm') !== ALGORITHM)
    throw malformedQuery(`only ${ALGORITHM} is supported`);
  const fields = {
    credential: required('X-Amz-Credential'),
    signedHeaders: required('X-Amz-SignedHeaders'),
    signature: required(SIGNATURE_PARAMETER),
  };
  const time = readTimestamp(required('X-Amz-Date'));
  if (time === undefined) throw malformedQuery('X-Amz-Date is not a time');
  checkPresignedTime(time, required('X-Amz-Expires'), now);
  const declaredPayload =
    optional('X-Amz-Content-Sha256') ??
    headerValue(head.rawHeaders, 'x-amz-content-sha256') ??
    'UNSIGNED-PAYLOAD';
  return makeClaim({ head, target, fields, time, declaredPayload, malformed: malformedQuery });
}

/**
 * Reads what a request signed with SigV4 claims, and checks everything that needs no secret: form,
 * time, and that nothing which matters was left unsigned. Any region is accepted.
 * @param now milliseconds since the epoch
 * @returns undefined when the request is not signed with SigV4
 * @throws S3Error
 */
export function readSignature(head: RequestHead, now: number): SignatureClaim | undefined {
  const authorizations = headerValues(head.rawHeaders, 'authorization');
  const authorization = authorizations.find((value) => /^AWS/i.test(value));
  if (/[?&]AWSAccessKeyId=/.test(head.target)) {
    throw new S3Error('InvalidRequest', `Only ${ALGORITHM} is supported.`);
  }
  const isPresigned = /[?&]X-Amz-(?:Algorithm|Credential|Signature)=/.test(head.target);
  if (authorization === undefined && !isPresigned) return undefined;
  // With several values, which one counts must not depend on the reader.
  if (authorizations.length + Number(isPresigned) > 1) {
    throw invalid('Only one way to authorize may be used at a time.');
  }
  return authorization === undefined
    ? claimOfQuery(head, now)
    : claimOfHeader(head, authorization, now);
}

/**
 * Checks the signature of a claim, in constant time.
 * @param signingKey of the claim's access key and scope
 * @throws S3Error SignatureDoesNotMatch
 */
export function verifySignature(claim: SignatureClaim, signingKey: KeyObject): VerifiedSignature {
  const expected = hmac(signingKey, claim.stringToSign);
  if (!timingSafeEqual(expected, Buffer.from(claim.signature, 'hex'))) {
    throw new S3Error('SignatureDoesNotMatch');
  }
  return { ...claim, signingKey };
}
