import { element, renderDocument } from './xml.ts';

/*
 * Clients retry a call that was answered with 429 or 5xx, some of them for hours. Whatever would
 * fail again in the same way therefore answers 4xx, even a full disk: 507 would fit by its name but
 * is retried, and 403 looks like a failed login, after which SDKs renew their credentials.
 */
const codes = {
  AccessDenied: [403, 'Access denied.'],
  AccessForbidden: [403, 'The bucket allows no pages of this origin.'],
  AuthorizationHeaderMalformed: [400, 'The authorization header is malformed.'],
  AuthorizationQueryParametersError: [400, 'The authorization query parameters are malformed.'],
  BadDigest: [400, 'The body does not have the checksum that the request gives.'],
  BucketAlreadyOwnedByYou: [409, 'The bucket exists and is yours.'],
  EntityTooLarge: [400, 'The body is larger than the maximum.'],
  EntityTooSmall: [400, 'A part other than the last is smaller than the minimum.'],
  ExpiredToken: [400, 'The token has expired.'],
  IncompleteBody: [400, 'The body is shorter or longer than the request says.'],
  InternalError: [500, 'Internal error. Try again.'],
  InvalidAccessKeyId: [403, 'The access key id does not exist.'],
  InvalidArgument: [400, 'Invalid argument.'],
  InvalidDigest: [400, 'A checksum of the request is malformed.'],
  InvalidPart: [400, 'A part was not uploaded, or has another ETag.'],
  InvalidPartNumber: [416, 'The object has no such part.'],
  InvalidPartOrder: [400, 'The parts are not in ascending order.'],
  InvalidPolicyDocument: [400, 'The policy of the form is not valid.'],
  InvalidRange: [416, 'The range cannot be satisfied.'],
  InvalidRequest: [400, 'Invalid request.'],
  InvalidURI: [400, 'The URI cannot be parsed.'],
  KeyTooLongError: [400, 'The key is too long.'],
  MalformedPOSTRequest: [400, 'The form is malformed.'],
  MalformedTrailerError: [400, 'The trailer is malformed or is not the announced one.'],
  MalformedXML: [400, 'The XML is malformed or is not what the operation expects.'],
  MetadataTooLarge: [400, 'The metadata of the object is larger than the maximum.'],
  MethodNotAllowed: [405, 'The method is not allowed on this resource.'],
  MissingContentLength: [411, 'The length of the body must be given.'],
  NoSuchBucket: [404, 'The bucket does not exist.'],
  NoSuchKey: [404, 'The key does not exist.'],
  NoSuchVersion: [404, 'The object has no such version; objects of this server have none.'],
  NoSuchUpload: [404, 'The upload does not exist; it may have been aborted or completed.'],
  NotImplemented: [501, 'The operation is not implemented.'],
  OperationAborted: [409, 'A conflicting operation is in progress.'],
  PreconditionFailed: [412, 'A precondition of the request does not hold.'],
  QuotaExceeded: [400, 'The disk is full.'],
  RequestTimeTooSkewed: [403, 'The time of the request is too far from that of the server.'],
  ServiceUnavailable: [503, 'Unavailable now. Try again.'],
  SignatureDoesNotMatch: [403, 'The signature is not the one that the request must have.'],
  SlowDown: [503, 'Too many requests. Try again later.'],
  XAmzContentSHA256Mismatch: [400, 'The body does not have the hash of x-amz-content-sha256.'],
} as const satisfies Record<string, readonly [status: number, message: string]>;

export type S3ErrorCode = keyof typeof codes;

/** An expected failure of the object API; code, status and message go to the caller. */
export class S3Error extends Error {
  readonly code: S3ErrorCode;
  readonly status: number;
  /** Additional headers of the answer. */
  readonly headers: Readonly<Record<string, string>>;

  /** @param message replaces the code's own text */
  constructor(
    code: S3ErrorCode,
    message?: string,
    options: ErrorOptions & { headers?: Readonly<Record<string, string>> } = {},
  ) {
    super(message ?? codes[code][1], options);
    this.name = 'S3Error';
    this.code = code;
    this.status = codes[code][0];
    this.headers = options.headers ?? {};
  }
}

/**
 * The body of an error answer. Like S3's own it has no namespace.
 * @param resource path of the request, without its query: that of a presigned URL is a credential
 */
export function renderError(error: S3Error, resource: string, requestId: string): string {
  return renderDocument(
    element('Error', [
      element('Code', error.code),
      element('Message', error.message),
      element('Resource', resource),
      element('RequestId', requestId),
    ]),
  );
}
