import { realpath } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { runInBackground } from '../../shared/background.ts';
import type { AppError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import { type Checkout, type OpenCheckoutTarget, openCheckoutTarget } from './checkout-target.ts';
import type { Delegations } from './delegations.ts';
import type { AttachedBacking } from './disk-backing.ts';
import type { DiskLayout } from './disk-layout.ts';

/** A claim on the mounted disk; it stays mounted until every claim is released. */
export interface DiskClaim {
  /** The part of the disk that callers see, where it is mounted on this host. */
  readonly path: string;
  /** Where objects are made before they appear below `path`; the same file system. */
  readonly uploads: string;
  /**
   * Checks files and directories out, all or none, until the claim is released. At most once for
   * each claim.
   * @throws AppError `delegation_conflict`, `timeout`, `delegation_revoked`, `bad_request`
   */
  checkOut(checkouts: readonly Checkout[], signal: AbortSignal): Promise<void>;
  /**
   * The holder has nothing of the disk open any more; spares {@link settle} to compare all of it.
   */
  closed(): void;
  /**
   * Waits until what was written is in the object storage behind the disk, if there is any.
   * @throws AppError `outcome_unknown`
   */
  settle(): Promise<void>;
  release(): void;
}

export interface ClaimRequest {
  /** The claimant, as the list of delegations shows it. */
  readonly clientId: string;
  /** The disk must be given up: the holder ends its use and releases the claim. */
  readonly onRevoked: (reason: AppError) => void;
  /** Once, when the claim no longer counts. */
  readonly onReleased: () => void;
}

/** The claims on one mounted disk, while it is mounted. */
export class DiskClaims {
  readonly #layout: DiskLayout;
  readonly #delegations: Delegations;
  readonly #backing: AttachedBacking | undefined;
  /** Each with the callback that tells its holder to give the disk up. */
  readonly #claims = new Map<DiskClaim, (reason: AppError) => void>();

  constructor(layout: DiskLayout, delegations: Delegations, backing: AttachedBacking | undefined) {
    this.#layout = layout;
    this.#delegations = delegations;
    this.#backing = backing;
  }

  get any(): boolean {
    return this.#claims.size > 0;
  }

  add({ clientId, onRevoked, onReleased }: ClaimRequest): DiskClaim {
    const targets: OpenCheckoutTarget[] = [];
    const use = this.#backing?.begin();
    const forget = (): void => {
      if (this.#claims.delete(claim)) onReleased();
    };
    const claim: DiskClaim = {
      path: this.#layout.contents,
      uploads: this.#layout.uploads,
      checkOut: async (checkouts, signal) => {
        const contents = await realpath(this.#layout.contents);
        for (const checkout of checkouts) {
          targets.push(await openCheckoutTarget(contents, checkout));
        }
        await this.#delegations.claim({ clientId, targets, onRevoked }, signal);
      },
      closed: () => use?.closed(),
      settle: async () => use?.settle(),
      release: () => {
        use?.end();
        this.#delegations.release(clientId);
        if (targets.length === 0) return forget();
        // The disk can be unmounted once nothing on it is open.
        runInBackground('disk.closeCheckouts', () => closeAll(targets.splice(0)).finally(forget));
      },
    };
    this.#claims.set(claim, onRevoked);
    return claim;
  }

  /** Tells all holders to give the disk up. */
  revoke(reason: AppError): void {
    for (const onRevoked of this.#claims.values()) onRevoked(reason);
  }

  /** Settles when no claim is left, or after the time in which holders have to end their use. */
  async released(): Promise<void> {
    const deadline = performance.now() + LIMITS.killGraceMs;
    while (this.any && performance.now() < deadline) await sleep(10);
  }
}

async function closeAll(targets: readonly OpenCheckoutTarget[]): Promise<void> {
  for (const target of targets) await target[Symbol.asyncDispose]();
}
