import { createHash, createHmac, type Hash, type Hmac } from 'node:crypto';
import { SignatureV4 } from '@smithy/signature-v4';
import { escapeKey } from './objects.ts';
import type { DiskUser } from './tools.ts';

type Bytes = string | ArrayBuffer | ArrayBufferView;

const asBytes = (data: Bytes): string | Uint8Array => {
  if (typeof data === 'string') return data;
  return ArrayBuffer.isView(data)
    ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength)
    : new Uint8Array(data);
};

/** SHA-256, or HMAC with it, in the form that the SDK's signer expects. */
class Sha256 {
  readonly #hash: Hash | Hmac;

  constructor(secret?: Bytes) {
    this.#hash =
      secret === undefined ? createHash('sha256') : createHmac('sha256', asBytes(secret));
  }

  update(data: Bytes): void {
    this.#hash.update(asBytes(data));
  }

  digest(): Promise<Uint8Array> {
    return Promise.resolve(this.#hash.digest());
  }

  reset(): never {
    throw new Error('a hash is used once');
  }
}

/** A URL that the AWS SDK's signer presigns, good for a minute at the given address. */
export async function presign(
  { identifier, token, disk, s3Url }: DiskUser,
  method: string,
  key: string,
  baseUrl: string = s3Url,
): Promise<string> {
  const signer = new SignatureV4({
    service: 's3',
    region: 'us-east-1',
    credentials: { accessKeyId: identifier, secretAccessKey: token },
    sha256: Sha256,
    uriEscapePath: false,
    applyChecksum: false,
  });
  const { protocol, hostname, port, host } = new URL(baseUrl);
  const path = `/${disk}/${escapeKey(key)}`;
  const { query = {} } = await signer.presign(
    {
      ...{ method, protocol, hostname, port: Number(port), path, query: {} },
      headers: { host, 'x-amz-content-sha256': 'UNSIGNED-PAYLOAD' },
    },
    { expiresIn: 60 },
  );
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) parameters.set(name, String(value));
  return `${baseUrl}${path}?${parameters.toString()}`;
}
