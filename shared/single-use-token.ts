import { randomUUID } from 'node:crypto';
import { LIMITS } from './limits.ts';
import { signToken, verifyToken } from './secrets.ts';

/*
 * Tokens with which the parts of a cluster show one another who they are. Each is good once, for
 * seconds: who reads one on its way cannot use it again.
 */

export type Claims = Readonly<Record<string, unknown>>;

/** Why a token is refused; `full` when too many others are remembered. */
export type TokenFault = 'invalid' | 'expired' | 'used' | 'full';

/** A token that `SingleUseTokens` takes, made now. */
export function signOnce(secret: string, purpose: string, claims: Record<string, string>): string {
  const nonce = randomUUID();
  return signToken(secret, purpose, { ...claims, nonce }, Date.now() + LIMITS.partTokenTtlMs);
}

/**
 * The receiver's memory of tokens. A token lives `partTokenTtlMs` by the signer's clock, which may
 * be as far ahead of ours as that again. Those from before this memory began are refused: a former
 * process of the same name may have seen them.
 */
export class SingleUseTokens {
  readonly #secret: string;
  readonly #begunAt = Date.now();
  /** Two generations; each lasts for the longest life that a token can have here. */
  #recent = new Set<string>();
  #former = new Set<string>();
  #turnedAt = Date.now();

  /** @param secret of the cluster */
  constructor(secret: string) {
    this.#secret = secret;
  }

  /** What a token says, which it never says again. */
  read(purpose: string, token: string): Claims | TokenFault {
    const now = Date.now();
    const claims = verifyToken(this.#secret, purpose, token, now);
    if (typeof claims === 'string') return claims;
    const { exp, nonce } = claims;
    if (typeof exp !== 'number' || typeof nonce !== 'string') return 'invalid';
    if (exp > now + LIMITS.partTokenTtlMs * 2) return 'invalid';
    if (exp - LIMITS.partTokenTtlMs < this.#begunAt) return 'expired';
    return this.#remember(nonce, now) ?? claims;
  }

  #remember(nonce: string, now: number): TokenFault | undefined {
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
