import { REGION_LIMITS } from './limits.ts';

/**
 * Where this node has lately placed what belongs together: the sandboxes of an account, those that
 * began with one image, those of one shape. It tells nothing of other nodes and is only a hint: a
 * host that was chosen lately for an image has it by now, unless it was given up since.
 */
export class RecentPlacements {
  /** Host ids by what was placed there, the newest last; so are the keys. */
  readonly #hosts = new Map<string, readonly string[]>();

  note(key: string, hostId: string): void {
    const hosts = [...(this.#hosts.get(key) ?? []), hostId].slice(
      -REGION_LIMITS.placementsRememberedMax,
    );
    this.#hosts.delete(key);
    this.#hosts.set(key, hosts);
    if (this.#hosts.size <= REGION_LIMITS.placementKeysRememberedMax) return;
    for (const oldest of this.#hosts.keys()) {
      this.#hosts.delete(oldest);
      break;
    }
  }

  /** The hosts that were chosen lately, the newest first, each once. */
  hostsOf(key: string): string[] {
    return [...new Set(this.#hosts.get(key)?.toReversed())];
  }

  /** How often the host was chosen lately. */
  countOf(key: string, hostId: string): number {
    return this.#hosts.get(key)?.filter((host) => host === hostId).length ?? 0;
  }
}
