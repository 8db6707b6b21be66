import { closeSync } from 'node:fs';
import { LIMITS } from '../../../shared/limits.ts';
import { native } from '../../native/native.ts';

/** The kernel keeps the last id for "none". */
const IDS_END = 2 ** 32 - 1;

/** One container's own users: root inside is `firstId` of the host, and so on. */
export interface ContainerUsers {
  readonly firstId: number;
  readonly idCount: number;
  /** Descriptor of its user namespace, until released. */
  readonly namespace: number;
  /** To be called when nothing of the container is left. */
  release(): void;
}

/**
 * Gives each container users that no other one has: the kernel counts by user what processes take of
 * it (inotify watches, message queues, pending signals, pipes), and what one could do as root of the
 * host, it can only do as one of these.
 */
export class UserRanges {
  readonly #baseId: number;
  readonly #count: number;
  readonly #used = new Set<number>();
  #next: number;

  /** @param baseId the first id of the host that containers may have; all above it are theirs */
  constructor(baseId: number) {
    this.#baseId = baseId;
    this.#count = Math.floor((IDS_END - baseId) / LIMITS.idsPerContainer);
    // Other agents of this host, in tests for example, begin elsewhere.
    this.#next = Math.floor(Math.random() * this.#count);
  }

  /** @throws Error when the kernel has no user namespaces for us, or every range is in use */
  async take(): Promise<ContainerUsers> {
    if (this.#used.size >= this.#count) throw new Error('every range of user ids is in use');
    while (this.#used.has(this.#next)) this.#next = (this.#next + 1) % this.#count;
    const range = this.#next;
    this.#next = (range + 1) % this.#count;
    this.#used.add(range);
    const firstId = this.#baseId + range * LIMITS.idsPerContainer;
    try {
      const namespace = await native.newUserNamespace(firstId, LIMITS.idsPerContainer);
      let released = false;
      const release = (): void => {
        if (released) return;
        released = true;
        closeSync(namespace);
        this.#used.delete(range);
      };
      return { firstId, idCount: LIMITS.idsPerContainer, namespace, release };
    } catch (error) {
      this.#used.delete(range);
      throw error;
    }
  }
}
