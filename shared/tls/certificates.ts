import { X509Certificate } from 'node:crypto';
import { watch } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { createSecureContext, type SecureContext } from 'node:tls';
import { runInBackground } from '../background.ts';
import { toError } from '../errors.ts';
import type { Logger } from '../log.ts';

/** Files in PEM. */
export interface CertificatePaths {
  readonly certPath: string;
  readonly keyPath: string;
  /** Authorities that a peer's certificate must be of; undefined: peers are not asked for one. */
  readonly caPath?: string | undefined;
}

interface Contents {
  readonly cert: Buffer;
  readonly key: Buffer;
  readonly ca?: Buffer;
}

/** Certificate, key and authority are written one after the other. */
const SETTLE_MS = 200;

/**
 * A certificate with its key, read again whenever one of their files is replaced. Connections that
 * are open go on with the former one. Files that do not fit together are refused, and the former
 * ones stay in use.
 */
export class Certificates {
  readonly #paths: CertificatePaths;
  readonly #watching = new AbortController();
  readonly #listeners = new Set<() => void>();
  #contents: Contents;
  #context: SecureContext;

  private constructor(paths: CertificatePaths, contents: Contents) {
    this.#paths = paths;
    this.#contents = contents;
    this.#context = createSecureContext(contents);
  }

  /** @throws Error naming the files when they cannot be read or do not fit together */
  static async open(paths: CertificatePaths, log: Logger): Promise<Certificates> {
    const certificates = new Certificates(paths, await readChecked(paths));
    certificates.#watch(log);
    return certificates;
  }

  /** The certificate and key for a server that speaks TLS, also given by {@link onChange}. */
  get contents(): Contents {
    return this.#contents;
  }

  /** The context of a client's connections. */
  get context(): SecureContext {
    return this.#context;
  }

  /** Whether peers must have a certificate. */
  get areMutual(): boolean {
    return this.#paths.caPath !== undefined;
  }

  /** @returns a function that removes the listener */
  onChange(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Stops watching the files. */
  close(): void {
    this.#watching.abort();
  }

  #watch(log: Logger): void {
    const { certPath, keyPath, caPath = certPath } = this.#paths;
    // The directories, because files are usually replaced rather than written.
    for (const directory of new Set([certPath, keyPath, caPath].map((path) => dirname(path)))) {
      this.#watchDirectory(directory, log);
    }
  }

  /**
   * However often anything changes beside the files, they are read again at most every SETTLE_MS.
   */
  #watchDirectory(directory: string, log: Logger): void {
    let due: NodeJS.Timeout | undefined;
    const reload = (): void => {
      due = undefined;
      runInBackground('tls.reload', () => this.#reload(log));
    };
    const watcher = watch(directory, { persistent: false, signal: this.#watching.signal });
    watcher.on('change', () => (due ??= setTimeout(reload, SETTLE_MS).unref()));
    watcher.on('error', (error) => {
      runInBackground('tls.watch', () => Promise.reject(error));
    });
    watcher.on('close', () => clearTimeout(due));
  }

  async #reload(log: Logger): Promise<void> {
    const { certPath } = this.#paths;
    try {
      const contents = await readChecked(this.#paths);
      if (isSame(contents, this.#contents)) return;
      this.#context = createSecureContext(contents);
      this.#contents = contents;
      for (const listener of this.#listeners) listener();
      const { validTo } = new X509Certificate(contents.cert);
      log.info({ certPath, validTo }, 'certificate:loaded');
    } catch (error) {
      log.warn({ certPath, err: toError(error) }, 'certificate:refused');
    }
  }
}

/**
 * The certificate that the settings name, if they name one.
 * @throws Error as {@link Certificates.open}
 */
export const openCertificates = async (
  paths: CertificatePaths | undefined,
  log: Logger,
): Promise<Certificates | undefined> =>
  paths === undefined ? undefined : Certificates.open(paths, log);

/** Reads the certificates that a configuration names. @throws Error when one does not fit */
export async function checkCertificates(
  paths: readonly (CertificatePaths | undefined)[],
): Promise<void> {
  for (const each of paths) if (each !== undefined) await readChecked(each);
}

const isSame = (a: Contents, b: Contents): boolean =>
  a.cert.equals(b.cert) && a.key.equals(b.key) && (a.ca ?? a.key).equals(b.ca ?? b.key);

/**
 * Reads the files and checks that they fit together.
 * @throws Error naming the files
 */
async function readChecked({ certPath, keyPath, caPath }: CertificatePaths): Promise<Contents> {
  const [cert, key, ca] = await Promise.all([
    readPem(certPath),
    readPem(keyPath),
    caPath === undefined ? undefined : readPem(caPath),
  ]);
  try {
    // OpenSSL ignores authorities that it cannot read.
    if (ca !== undefined) assertCertificate(ca);
    const contents = { cert, key, ...(ca === undefined ? {} : { ca }) };
    createSecureContext(contents);
    return contents;
  } catch (cause) {
    const files = [certPath, keyPath, ...(caPath === undefined ? [] : [caPath])].join(', ');
    const message = `certificate, key and authority do not fit: ${toError(cause).message} (${files})`;
    throw new Error(message, { cause });
  }
}

function assertCertificate(pem: Buffer): void {
  if (new X509Certificate(pem).raw.length === 0) throw new Error('there is no certificate');
}

async function readPem(path: string): Promise<Buffer> {
  try {
    return await readFile(path);
  } catch (cause) {
    throw new Error(`a certificate file cannot be read: ${toError(cause).message}`, { cause });
  }
}
