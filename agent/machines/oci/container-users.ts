import { closeSync } from 'node:fs';
import { LIMITS } from '../../../shared/limits.ts';
import { native } from '../../native/native.ts';

/** The kernel reserves the last id for "none". */
const IDS_END = 2 ** 32 - 1;

/** A range of the host's ids that begins at `first`. */
export interface IdRange {
  readonly first: number;
  readonly count: number;
}

/** Consecutive ids inside a container and their ids on the host, as in the OCI configuration. */
export interface IdMapping {
  readonly containerID: number;
  readonly hostID: number;
  readonly size: number;
}

/** The users of one container: root inside is `firstId` on the host, and so on. */
export interface ContainerUsers {
  readonly firstId: number;
  readonly mappings: readonly IdMapping[];
  /** A descriptor of the container's user namespace, open until released. */
  readonly namespace: number;
  /** Call it when nothing of the container is left. */
  release(): void;
}

/**
 * Maps the ids above a container's own range to the same ids of the host, since files on disks may
 * belong to any of them.
 * @param closed ids that no container may use, because processes of the host or of other containers
 *   run under them
 */
function sharedIds(closed: readonly IdRange[]): IdMapping[] {
  const mappings: IdMapping[] = [];
  let from: number = LIMITS.idsPerContainer;
  for (const { first, count } of [...closed, { first: IDS_END, count: 0 }].sort(
    (a, b) => a.first - b.first,
  )) {
    if (first > from) mappings.push({ containerID: from, hostID: from, size: first - from });
    from = Math.max(from, first + count);
  }
  return mappings;
}

/**
 * Gives each container users of its own (docs/decisions/0025). The kernel limits some resources per
 * user (inotify watches, message queues, pending signals, pipes), so containers cannot use up each
 * other's; and whatever breaks out of a container is not root on the host.
 */
export class UserRanges {
  readonly #baseId: number;
  readonly #shared: readonly IdMapping[];
  readonly #used = new Set<number>();
  #next: number;

  /**
   * @param baseId the first id of the host that containers have as their own
   * @param reserved ids of the host that no container may have
   */
  constructor(baseId: number, reserved: readonly IdRange[] = []) {
    const own = { first: baseId, count: LIMITS.userRanges * LIMITS.idsPerContainer };
    this.#baseId = baseId;
    this.#shared = sharedIds([own, ...reserved]);
    // Other agents on this machine, in tests for example, start elsewhere in the range.
    this.#next = Math.floor(Math.random() * LIMITS.userRanges);
  }

  /** @throws Error when the kernel offers no user namespaces, or every range is in use */
  async take(): Promise<ContainerUsers> {
    if (this.#used.size >= LIMITS.userRanges) throw new Error('every range of user ids is in use');
    while (this.#used.has(this.#next)) this.#next = (this.#next + 1) % LIMITS.userRanges;
    const range = this.#next;
    this.#next = (range + 1) % LIMITS.userRanges;
    this.#used.add(range);
    const firstId = this.#baseId + range * LIMITS.idsPerContainer;
    const own = { containerID: 0, hostID: firstId, size: LIMITS.idsPerContainer };
    const mappings = [own, ...this.#shared];
    const lines = mappings.map((each) => `${each.containerID} ${each.hostID} ${each.size}\n`);
    try {
      const namespace = await native.newUserNamespace(firstId, lines.join(''));
      let released = false;
      const release = (): void => {
        if (released) return;
        released = true;
        closeSync(namespace);
        this.#used.delete(range);
      };
      return { firstId, mappings, namespace, release };
    } catch (error) {
      this.#used.delete(range);
      throw error;
    }
  }
}
