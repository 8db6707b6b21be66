import { createHmac, createSecretKey, type KeyObject } from 'node:crypto';

/** The scope of a signing key: one day, region and service. */
export interface Scope {
  /** Date in the form `20130524`. */
  readonly date: string;
  readonly region: string;
  /** The scope in its signed form: `20130524/us-east-1/s3/aws4_request`. */
  readonly text: string;
}

/** @param key a key object: Node takes several times as long with the bytes of a key */
export const hmac = (key: KeyObject, text: string): Buffer =>
  createHmac('sha256', key).update(text).digest();

/** SigV4 "Calculate the signing key". */
export const deriveSigningKey = (secret: string, scope: Scope): KeyObject =>
  scope.text
    .split('/')
    .reduce(
      (key, part) => createSecretKey(hmac(key, part)),
      createSecretKey(Buffer.from(`AWS4${secret}`)),
    );
