import type { KeyObject } from 'node:crypto';
import { LIMITS } from '../../shared/limits.ts';
import { LINK_LIMITS } from './limits.ts';
import {
  type ConnectionClaims,
  readConnectionKey,
  verifyConnectionToken,
} from '../../shared/links/connection-token.ts';

/**
 * How long a key is kept after the last control node that had it is gone. A node whose link just
 * broke may not have noticed yet and sign for a moment longer, by a clock that differs a little.
 */
const RETAINED_MS = LIMITS.connectionTokenTtlMs + LINK_LIMITS.connectionKeySlackMs;

interface KnownKey {
  readonly key: KeyObject;
  /** Control nodes that are linked now and have the key. */
  readonly nodeIds: Set<string>;
  /** When the key stops being accepted: never while a linked node has it. */
  forgetAt: number;
}

/**
 * The public keys with which this host verifies connection tokens: those of every control node that
 * it is registered with. A key outlives its nodes by the life of a token, so a URL works even when
 * every control node has died since it was signed.
 */
export class ConnectionKeys {
  readonly #hostId: string;
  readonly #region: string;
  readonly #keys = new Map<string, KnownKey>();

  constructor({ hostId, region }: { readonly hostId: string; readonly region: string }) {
    this.#hostId = hostId;
    this.#region = region;
  }

  /** False until a control node has registered this host: no token can be judged before. */
  get isReady(): boolean {
    return this.#keys.size > 0;
  }

  /** Takes over the whole ring of a node that has registered this host. */
  hold(nodeId: string, publicKeys: readonly string[], now = Date.now()): void {
    this.release(nodeId, now);
    for (const text of publicKeys) {
      const known = this.#keys.get(text) ?? {
        key: readConnectionKey(text),
        nodeIds: new Set(),
        forgetAt: 0,
      };
      known.nodeIds.add(nodeId);
      known.forgetAt = Number.POSITIVE_INFINITY;
      this.#keys.set(text, known);
    }
  }

  /** The link to the node is gone: keys that no other node has are forgotten after a while. */
  release(nodeId: string, now = Date.now()): void {
    for (const [text, known] of this.#keys) {
      if (known.nodeIds.delete(nodeId) && known.nodeIds.size === 0) {
        known.forgetAt = now + RETAINED_MS;
      }
      if (known.forgetAt <= now) this.#keys.delete(text);
    }
  }

  /**
   * Reads the token of a connection's URL. It may be used again until it expires.
   * @param now milliseconds since the epoch
   * @returns undefined unless control signed the token for this host and it has not expired.
   *   Whether the sandbox is there, and belongs to the account in the claims, is for the caller to
   *   find out.
   */
  verify(token: string, now = Date.now()): ConnectionClaims | undefined {
    const claims = verifyConnectionToken(token, (text) => this.#find(text, now), now);
    const isOurs = claims?.hostId === this.#hostId && claims.region === this.#region;
    return isOurs ? claims : undefined;
  }

  #find(text: string, now: number): KeyObject | undefined {
    const known = this.#keys.get(text);
    return known !== undefined && known.forgetAt > now ? known.key : undefined;
  }
}
