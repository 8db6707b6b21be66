import type { KeyObject } from 'node:crypto';
import { EDGE_LIMITS } from '../../limits.ts';
import { type Ring, unseal } from '../../../../shared/secrets.ts';
import { deriveSigningKey, type Scope } from './sigv4-key.ts';

interface Known {
  readonly token: string;
  /** The signing key of the scope that was asked for last. */
  signing?: { readonly scope: string; readonly key: KeyObject };
}

/**
 * Opens disk tokens, which the directory has sealed, and derives the signing keys of their users.
 * Results are remembered by what is sealed and where: a client signs every request of a day with
 * the same key, and unsealing and deriving take longer than everything else that verifies a
 * request. Whether a token is in force is never remembered: callers read what is sealed from the
 * directory for each request.
 */
export class DiskTokens {
  readonly #keys: Ring<Buffer>;
  readonly #known = new Map<string, Known>();

  constructor(encryptionKeys: Ring<Buffer>) {
    this.#keys = encryptionKeys;
  }

  /** @throws Error when it was sealed with another key or for another disk, or was changed */
  open(sealed: string, diskId: string): string {
    return this.#open(sealed, diskId).token;
  }

  /** @throws Error as {@link open} */
  signingKey(sealed: string, diskId: string, scope: Scope): KeyObject {
    const known = this.#open(sealed, diskId);
    if (known.signing?.scope === scope.text) return known.signing.key;
    const key = deriveSigningKey(known.token, scope);
    known.signing = { scope: scope.text, key };
    return key;
  }

  #open(sealed: string, diskId: string): Known {
    const name = `${diskId} ${sealed}`;
    const found = this.#known.get(name);
    if (found !== undefined) return found;
    const known = { token: unseal(this.#keys, sealed, diskId) };
    if (this.#known.size >= EDGE_LIMITS.diskTokensRememberedMax) this.#known.clear();
    this.#known.set(name, known);
    return known;
  }
}
