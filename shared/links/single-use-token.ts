import { randomUUID } from 'node:crypto';
import { LIMITS } from '../limits.ts';
import { type Ring, signToken, verifyToken } from '../secrets.ts';

/*
 * Tokens with which the parts of a cluster authenticate to each other. Each is accepted once and
 * for a few seconds only, so one that was read on its way cannot be used again
 * (docs/decisions/0019).
 */

export type Claims = Readonly<Record<string, unknown>>;

/** Why a token is refused. `full`: too many others are remembered to tell whether it was used. */
export type TokenFault = 'invalid' | 'expired' | 'used' | 'full';

/** Signs a token that {@link SingleUseTokens} accepts once, from now on. */
export function signOnce(
  secrets: Ring<string>,
  purpose: string,
  claims: Record<string, string>,
): string {
  const nonce = randomUUID();
  return signToken(secrets, purpose, { ...claims, nonce }, Date.now() + LIMITS.partTokenTtlMs);
}

/**
 * The receiver's memory of used tokens. A token lives for `partTokenTtlMs` by the signer's clock,
 * which may be ahead of ours by as much again. Tokens signed before this memory began are refused,
 * because a former process of the same name may have accepted them. Ages are those of a clock that
 * nobody sets: the wall clock may be hours ahead when a host starts, and is then set back.
 */
export class SingleUseTokens {
  readonly #secrets: Ring<string>;
  readonly #begunAt = performance.now();
  /**
   * Used tokens in two generations, each kept for the longest time that a token can be valid here.
   */
  #recent = new Set<string>();
  #former = new Set<string>();
  #turnedAt = performance.now();

  /** @param secrets those of the cluster */
  constructor(secrets: Ring<string>) {
    this.#secrets = secrets;
  }

  /** Reads a token's claims and marks the token as used. */
  read(purpose: string, token: string): Claims | TokenFault {
    const now = Date.now();
    const claims = verifyToken(this.#secrets, purpose, token, now);
    if (typeof claims === 'string') return claims;
    const { exp, nonce } = claims;
    if (typeof exp !== 'number' || typeof nonce !== 'string') return 'invalid';
    if (exp > now + LIMITS.partTokenTtlMs * 2) return 'invalid';
    const begunAt = Math.floor(now - (performance.now() - this.#begunAt));
    if (exp - LIMITS.partTokenTtlMs < begunAt) return 'expired';
    return this.#remember(nonce) ?? claims;
  }

  #remember(nonce: string): TokenFault | undefined {
    const now = performance.now();
    if (now - this.#turnedAt > LIMITS.partTokenTtlMs * 2) {
      this.#former = this.#recent;
      this.#recent = new Set();
      this.#turnedAt = now;
    }
    if (this.#recent.has(nonce) || this.#former.has(nonce)) return 'used';
    if (this.#recent.size >= LIMITS.partTokensRememberedMax) return 'full';
    this.#recent.add(nonce);
    return undefined;
  }
}
