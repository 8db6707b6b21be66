import { createECDH, createPrivateKey, hkdfSync } from 'node:crypto';
import {
  BasicConstraintsExtension,
  KeyUsageFlags,
  KeyUsagesExtension,
  SubjectKeyIdentifierExtension,
  X509CertificateGenerator,
} from './x509.ts';
import type { AuthorityKeys } from './egress-settings.ts';

const CURVE_ORDER = 0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551n; // FIPS 186-4
/** Longer than the order, so that the remainder is evenly distributed. */
const SEED_BYTES = 48;
/** Fixed, so that a sandbox's authority stays the same for its life. */
const VALID = { notBefore: new Date('2025-01-01'), notAfter: new Date('2049-12-31') };

export const SIGNING = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' } as const;

/**
 * The certificate authority of one sandbox. It follows from the host's key and the sandbox's id, so
 * that nothing of it has to be stored, a resumed guest still trusts it, and a fork has another one.
 * @param hostKey secret, 32 random bytes
 */
export async function authorityOf(hostKey: Buffer, sandboxId: string): Promise<AuthorityKeys> {
  const privateKey = deriveKey(hostKey, sandboxId);
  const der = privateKey.export({ format: 'der', type: 'pkcs8' });
  const signingKey = await crypto.subtle.importKey('pkcs8', der, SIGNING, true, ['sign']);
  const { d: _secret, ...open } = privateKey.export({ format: 'jwk' });
  const publicKey = await crypto.subtle.importKey('jwk', open, SIGNING, true, ['verify']);
  const certificate = await X509CertificateGenerator.createSelfSigned({
    serialNumber: '01',
    name: `CN=Berth egress of ${sandboxId}`,
    ...VALID,
    signingAlgorithm: SIGNING,
    keys: { privateKey: signingKey, publicKey },
    extensions: [
      new BasicConstraintsExtension(true, 0, true),
      new KeyUsagesExtension(KeyUsageFlags.keyCertSign | KeyUsageFlags.cRLSign, true),
      await SubjectKeyIdentifierExtension.create(publicKey),
    ],
  });
  return {
    certificate: `${certificate.toString('pem')}\n`,
    key: privateKey.export({ format: 'pem', type: 'pkcs8' }).toString(),
  };
}

const toText = (bytes: Buffer): string => bytes.toString('base64url');

function deriveKey(hostKey: Buffer, sandboxId: string) {
  const seed = Buffer.from(
    hkdfSync('sha256', hostKey, sandboxId, 'berth egress authority', SEED_BYTES),
  );
  const scalar = (BigInt(`0x${seed.toString('hex')}`) % (CURVE_ORDER - 1n)) + 1n;
  const secret = Buffer.from(scalar.toString(16).padStart(64, '0'), 'hex');
  const point = createECDH('prime256v1');
  point.setPrivateKey(secret);
  const open = point.getPublicKey(); // 0x04, x, y
  return createPrivateKey({
    format: 'jwk',
    key: {
      kty: 'EC',
      crv: 'P-256',
      d: toText(secret),
      x: toText(open.subarray(1, 33)),
      y: toText(open.subarray(33)),
    },
  });
}
