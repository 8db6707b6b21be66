import { closeSync } from 'node:fs';
import { LIMITS } from '../../shared/limits.ts';
import { native } from '../native/native.ts';

/** The kernel keeps the last id for "none". */
const IDS_END = 2 ** 32 - 1;

/** Ids of the host, from `first` on. */
export interface IdRange {
  readonly first: number;
  readonly count: number;
}

/** Consecutive ids of a container and what they are on the host, as the OCI configuration has them. */
export interface IdMapping {
  readonly containerID: number;
  readonly hostID: number;
  readonly size: number;
}

/** One container's own users: root inside is `firstId` of the host, and so on. */
export interface ContainerUsers {
  readonly firstId: number;
  readonly mappings: readonly IdMapping[];
  /** Descriptor of its user namespace, until released. */
  readonly namespace: number;
  /** To be called when nothing of the container is left. */
  release(): void;
}

/**
 * The ids above a container's own range are the host's: files on disks may belong to any of them.
 * @param closed ids that no container may have, because processes of the host or of other containers
 *   run as them
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
 * Gives each container users that no other one has: the kernel counts by user what processes take of
 * it (inotify watches, message queues, pending signals, pipes), and what one could do as root of the
 * host, it can only do as one of these.
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
    // Other agents of this host, in tests for example, begin elsewhere.
    this.#next = Math.floor(Math.random() * LIMITS.userRanges);
  }

  /** @throws Error when the kernel has no user namespaces for us, or every range is in use */
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
