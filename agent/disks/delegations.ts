import { AppError } from '../../shared/errors.ts';
import type { Delegation } from '../../shared/jobs.ts';

interface Claim {
  readonly clientId: string;
  readonly inodeId: number;
  readonly path: string;
  /** The delegation was taken away: its holder must end. */
  readonly onRevoked: (reason: AppError) => void;
  /** Resolves the wait of a claim that is not granted yet. */
  readonly grant: (outcome: 'granted' | 'refused' | 'revoked') => void;
}

/**
 * The exclusive claims on a disk's files and directories. One client holds an inode; the others
 * wait in the order in which they came. Kept by the disk's handler, through which all uses go.
 */
export class Delegations {
  /** By inode; the first of each list holds it. */
  readonly #claims = new Map<number, Claim[]>();

  /**
   * Claims an inode for a client; one that it holds already is granted again.
   * @param waitMs how long to wait for another client to let go; 0: not at all
   * @param signal ends the wait
   * @throws AppError `delegation_conflict` at once, `timeout` after the wait
   */
  async claim(
    client: Pick<Claim, 'clientId' | 'inodeId' | 'path' | 'onRevoked'>,
    waitMs: number,
    signal: AbortSignal,
  ): Promise<void> {
    const { clientId, inodeId, path } = client;
    const claims = this.#claims.get(inodeId) ?? [];
    if (claims[0]?.clientId === clientId) return;
    if (claims.length > 0 && waitMs === 0) {
      throw new AppError('delegation_conflict', `${path || 'the disk'} is checked out by another`);
    }
    const { promise, resolve } = Promise.withResolvers<'granted' | 'refused' | 'revoked'>();
    const claim: Claim = { ...client, grant: resolve };
    claims.push(claim);
    this.#claims.set(inodeId, claims);
    if (claims[0] === claim) return;
    const refuse = (): void => resolve('refused');
    const timer = setTimeout(refuse, waitMs);
    signal.addEventListener('abort', refuse, { once: true });
    const outcome = signal.aborted ? 'refused' : await promise;
    clearTimeout(timer);
    signal.removeEventListener('abort', refuse);
    if (outcome === 'granted') return;
    this.#drop(claim);
    throw outcome === 'revoked'
      ? revoked()
      : new AppError('timeout', `${path || 'the disk'} was checked out by another for too long`);
  }

  /** Lets go of everything that the client holds or awaits. */
  release(clientId: string): void {
    for (const claims of [...this.#claims.values()]) {
      for (const claim of claims.filter((each) => each.clientId === clientId)) {
        claim.grant('refused');
        this.#drop(claim);
      }
    }
  }

  /** @returns false when the client has no claim on this inode */
  revoke(clientId: string, inodeId: number): boolean {
    const claim = this.#claims.get(inodeId)?.find((each) => each.clientId === clientId);
    if (claim === undefined) return false;
    claim.grant('revoked');
    claim.onRevoked(revoked());
    return true;
  }

  list(): Delegation[] {
    return [...this.#claims.values()].flatMap((claims) =>
      claims.map(({ clientId, inodeId, path }, position) => ({
        clientId,
        inodeId,
        path,
        isPending: position > 0,
        isOrphaned: false, // A client's claims go with its exec.
      })),
    );
  }

  #drop(claim: Claim): void {
    const claims = this.#claims.get(claim.inodeId) ?? [];
    const left = claims.filter((each) => each !== claim);
    if (left.length === 0) this.#claims.delete(claim.inodeId);
    else this.#claims.set(claim.inodeId, left);
    if (claims[0] === claim) left[0]?.grant('granted');
  }
}

const revoked = (): AppError =>
  new AppError('delegation_revoked', 'a delegation of this command was revoked; it was ended');
