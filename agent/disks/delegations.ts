import { AppError } from '../../shared/errors.ts';
import type { Delegation } from '../../shared/jobs/disk-kinds.ts';
import type { CheckoutTarget } from './checkout-target.ts';
import { PathTree } from './path-tree.ts';

/** Everything that one client checks out of a disk. */
export interface CheckoutRequest {
  readonly clientId: string;
  readonly targets: readonly CheckoutTarget[];
  /** A delegation was revoked: its holder must end. */
  readonly onRevoked: (reason: AppError) => void;
}

interface Entry extends CheckoutRequest {
  isGranted: boolean;
  /** Targets that a holder, or a request that came earlier, keeps from being granted. */
  blocked: readonly CheckoutTarget[];
  readonly settle: (outcome: 'granted' | 'refused' | 'revoked') => void;
}

/**
 * The exclusive checkouts of a disk's files and directories, kept by the disk's lease holder,
 * through which all uses of the disk go. A checkout of a path excludes every other checkout of that
 * path, of its parents, and of anything beneath it; see {@link CheckoutTarget.paths} for what
 * counts as a path. Writers that check nothing out are not held back (docs/architecture.md,
 * Delegations).
 *
 * A request gets all of its targets at once or waits holding none, behind earlier requests that it
 * conflicts with. With disks taken in one order, commands therefore cannot wait for each other in a
 * circle.
 */
export class Delegations {
  /** In order of arrival. */
  readonly #entries: Entry[] = [];

  /**
   * Checks out all targets of a request; a client makes one request and then calls {@link release}.
   * @param signal ends the wait
   * @throws AppError `delegation_conflict` when a target that may not be waited for is taken;
   *   `timeout` when one was not free in time; `delegation_revoked`. The request then holds
   *   nothing.
   */
  async claim(request: CheckoutRequest, signal: AbortSignal): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<'granted' | 'refused' | 'revoked'>();
    const entry: Entry = { ...request, isGranted: false, blocked: [], settle: resolve };
    this.#entries.push(entry);
    this.#grantWhatIsFree();
    if (entry.isGranted) return;
    const [first] = [...entry.blocked].sort((a, b) => a.waitMs - b.waitMs);
    const { waitMs, path } = first ?? { waitMs: 0, path: '' };
    if (waitMs === 0) {
      this.#remove(entry);
      throw new AppError(
        'delegation_conflict',
        `${nameOf(path)} overlaps what another command has checked out; set queueMs to wait`,
      );
    }
    const refuse = (): void => resolve('refused');
    const timer = setTimeout(refuse, waitMs);
    signal.addEventListener('abort', refuse, { once: true });
    if (signal.aborted) refuse();
    const outcome = await promise;
    clearTimeout(timer);
    signal.removeEventListener('abort', refuse);
    if (outcome === 'granted') return;
    this.#remove(entry);
    if (outcome === 'revoked') throw revoked();
    signal.throwIfAborted();
    throw new AppError('timeout', `${nameOf(path)} was not free within queueMs (${waitMs} ms)`);
  }

  /** Releases what the client holds and withdraws what it waits for. */
  release(clientId: string): void {
    for (const entry of this.#entries.filter((each) => each.clientId === clientId)) {
      entry.settle('refused');
      this.#remove(entry);
    }
  }

  /** @returns false when the client neither holds nor awaits this inode */
  revoke(clientId: string, inodeId: number): boolean {
    const entry = this.#entries.find(
      (each) =>
        each.clientId === clientId && each.targets.some((target) => target.inodeId === inodeId),
    );
    if (entry === undefined) return false;
    entry.settle('revoked');
    entry.onRevoked(revoked());
    return true;
  }

  list(): Delegation[] {
    return this.#entries.flatMap(({ clientId, targets, isGranted }) => {
      // A command may check out one inode by several paths: list the inode once, by the first path.
      const byInode = new Map(targets.toReversed().map((target) => [target.inodeId, target]));
      return [...byInode.values()].toReversed().map(({ inodeId, path }) => ({
        clientId,
        inodeId,
        path,
        isPending: !isGranted,
        isOrphaned: false, // Delegations end with the command that holds them.
      }));
    });
  }

  #grantWhatIsFree(): void {
    const taken = new TakenTargets();
    for (const entry of this.#entries) if (entry.isGranted) taken.add(entry.targets);
    for (const entry of this.#entries) {
      if (entry.isGranted) continue;
      entry.blocked = entry.targets.filter((target) => taken.overlaps(target));
      // Also when it waits on: a later request must not overtake it.
      taken.add(entry.targets);
      if (entry.blocked.length > 0) continue;
      entry.isGranted = true;
      entry.settle('granted');
    }
  }

  #remove(entry: Entry): void {
    const index = this.#entries.indexOf(entry);
    if (index === -1) return;
    this.#entries.splice(index, 1);
    this.#grantWhatIsFree();
  }
}

class TakenTargets {
  readonly #paths = new PathTree();
  readonly #inodes = new Set<number>();

  add(targets: readonly CheckoutTarget[]): void {
    for (const target of targets) {
      this.#inodes.add(target.inodeId);
      for (const path of target.paths()) this.#paths.add(path);
    }
  }

  overlaps(target: CheckoutTarget): boolean {
    return (
      this.#inodes.has(target.inodeId) || target.paths().some((path) => this.#paths.overlaps(path))
    );
  }
}

const nameOf = (path: string): string => path || 'the root of the disk';

const revoked = (): AppError =>
  new AppError('delegation_revoked', 'a delegation of this command was revoked; it was ended');
