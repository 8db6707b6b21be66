import { KeyObject, randomBytes, type webcrypto } from 'node:crypto';
import { rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import {
  AuthorityKeyIdentifierExtension,
  BasicConstraintsExtension,
  KeyUsageFlags,
  KeyUsagesExtension,
  SubjectAlternativeNameExtension,
  X509Certificate,
  X509CertificateGenerator,
} from '../../agent/network/egress/x509.ts';
import { DAY_MS } from '../../shared/units.ts';

const ALGORITHM = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' } as const;

const serialNumber = (): string => randomBytes(16).toString('hex').replace(/^./u, '1');
const validity = (): { notBefore: Date; notAfter: Date } => ({
  notBefore: new Date(Date.now() - DAY_MS),
  notAfter: new Date(Date.now() + DAY_MS),
});
const newKeys = (): Promise<webcrypto.CryptoKeyPair> =>
  crypto.subtle.generateKey(ALGORITHM, true, ['sign', 'verify']);

/** Replaces the file, as tools that renew certificates do. */
async function replaceFile(path: string, text: string): Promise<void> {
  await writeFile(`${path}.new`, text, { mode: 0o600 });
  await rename(`${path}.new`, path);
}

/** A certificate authority of a test's own. */
export class TestAuthority {
  /** PEM. */
  readonly certificate: string;
  readonly #keys: webcrypto.CryptoKeyPair;

  private constructor(certificate: string, keys: webcrypto.CryptoKeyPair) {
    this.certificate = certificate;
    this.#keys = keys;
  }

  static async create(name: string): Promise<TestAuthority> {
    const keys = await newKeys();
    const certificate = await X509CertificateGenerator.createSelfSigned({
      ...{ serialNumber: serialNumber(), name: `CN=Authority ${name}`, keys, ...validity() },
      signingAlgorithm: ALGORITHM,
      extensions: [
        new BasicConstraintsExtension(true, undefined, true),
        new KeyUsagesExtension(KeyUsageFlags.keyCertSign, true),
      ],
    });
    return new TestAuthority(certificate.toString('pem'), keys);
  }

  /**
   * Writes a new certificate for these names and addresses, and its key, over former ones.
   * @returns the paths `<directory>/<name>.{pem,key}`
   */
  async issue(
    directory: string,
    name: string,
    hosts: readonly string[] = ['127.0.0.1'],
  ): Promise<{ cert: string; key: string }> {
    const keys = await newKeys();
    const certificate = await X509CertificateGenerator.create({
      ...{ serialNumber: serialNumber(), subject: `CN=${name}`, ...validity() },
      issuer: new X509Certificate(this.certificate).subject,
      signingAlgorithm: ALGORITHM,
      signingKey: this.#keys.privateKey,
      publicKey: keys.publicKey,
      extensions: [
        new BasicConstraintsExtension(false, undefined, true),
        new SubjectAlternativeNameExtension(
          hosts.map((value) => ({ type: /^[\d.]+$/u.test(value) ? 'ip' : 'dns', value })),
        ),
        await AuthorityKeyIdentifierExtension.create(this.#keys.publicKey),
      ],
    });
    const [cert, key] = [join(directory, `${name}.pem`), join(directory, `${name}.key`)];
    const pem = KeyObject.from(keys.privateKey).export({ type: 'pkcs8', format: 'pem' });
    await replaceFile(key, String(pem));
    await replaceFile(cert, certificate.toString('pem'));
    return { cert, key };
  }
}
