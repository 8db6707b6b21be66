import { createPrivateKey, randomBytes, type webcrypto } from 'node:crypto';
import { createSecureContext, type SecureContext } from 'node:tls';
import {
  AuthorityKeyIdentifierExtension,
  BasicConstraintsExtension,
  ExtendedKeyUsage,
  ExtendedKeyUsageExtension,
  KeyUsageFlags,
  KeyUsagesExtension,
  PemConverter,
  SubjectAlternativeNameExtension,
  X509Certificate,
  X509CertificateGenerator,
} from './x509.ts';
import { DAY_MS } from '../../../shared/units.ts';
import { SIGNING } from './authority.ts';
import type { AuthorityKeys } from './egress-settings.ts';

const LEAVES_MAX = 256;
const VALID_MS = 30 * DAY_MS;
/** A guest's clock may be behind. */
const SLACK_MS = DAY_MS;

interface Leaf {
  readonly context: SecureContext;
  readonly renewAt: number;
}

/** Certificates of one sandbox's authority for the hosts that it brokers; all have one key. */
export class LeafCertificates {
  readonly #authority: AuthorityKeys;
  /** In the order of their last use. */
  readonly #leaves = new Map<string, Promise<Leaf>>();
  #keys: Promise<webcrypto.CryptoKeyPair> | undefined;

  constructor(authority: AuthorityKeys) {
    this.#authority = authority;
  }

  /** The certificate that a server of this name presents. @param name a domain */
  async contextFor(name: string): Promise<SecureContext> {
    const known = this.#leaves.get(name);
    const isFresh = known !== undefined && (await known).renewAt > Date.now();
    const leaf = isFresh ? known : this.#issue(name);
    // A certificate that could not be issued is issued anew for the next connection.
    if (!isFresh) leaf.catch(() => this.#leaves.delete(name));
    this.#leaves.delete(name);
    this.#leaves.set(name, leaf);
    if (this.#leaves.size > LEAVES_MAX) this.#leaves.delete(this.#leaves.keys().next().value ?? '');
    return (await leaf).context;
  }

  async #issue(name: string): Promise<Leaf> {
    this.#keys ??= crypto.subtle.generateKey(SIGNING, true, ['sign', 'verify']);
    const keys = await this.#keys;
    const issuer = new X509Certificate(this.#authority.certificate);
    const now = Date.now();
    const certificate = await X509CertificateGenerator.create({
      serialNumber: randomBytes(16).toString('hex').replace(/^./u, '1'), // Positive.
      issuer: issuer.subject,
      // A common name has at most 64 characters, and nobody reads it (RFC 9525).
      subject: 'O=Berth egress',
      notBefore: new Date(now - SLACK_MS),
      notAfter: new Date(now + VALID_MS),
      signingAlgorithm: SIGNING,
      signingKey: await importKey(this.#authority.key),
      publicKey: keys.publicKey,
      extensions: [
        new BasicConstraintsExtension(false, undefined, true),
        new KeyUsagesExtension(KeyUsageFlags.digitalSignature, true),
        new ExtendedKeyUsageExtension([ExtendedKeyUsage.serverAuth]),
        new SubjectAlternativeNameExtension([{ type: 'dns', value: name }]),
        await AuthorityKeyIdentifierExtension.create(await issuer.publicKey.export()),
      ],
    });
    const der = await crypto.subtle.exportKey('pkcs8', keys.privateKey);
    const key = PemConverter.encode(der, 'PRIVATE KEY');
    const context = createSecureContext({ key, cert: certificate.toString('pem') });
    return { context, renewAt: now + VALID_MS / 2 };
  }
}

function importKey(pem: string): Promise<webcrypto.CryptoKey> {
  const der = createPrivateKey(pem).export({ format: 'der', type: 'pkcs8' });
  return crypto.subtle.importKey('pkcs8', der, SIGNING, false, ['sign']);
}
