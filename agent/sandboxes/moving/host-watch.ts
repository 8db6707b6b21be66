import { open, type FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  type HostEntry,
  type Hosts,
  isFenced,
  isPresent,
} from '../../../shared/directory/hosts.ts';
import { errnoOf } from '../../../shared/errors.ts';
import { SYSTEM_LIMITS } from '../../system/limits.ts';
import type { Logger } from '../../../shared/log.ts';
import { type FileLock, takeLock } from '../../system/file-lock.ts';
import { readOptional } from '../../system/read-optional.ts';
import { newSign, tellsOfLinks } from './alive-sign.ts';
import type { SharedStorage } from './shared-storage.ts';
import { LIMITS } from '../../../shared/limits.ts';

export interface HostWatchDeps {
  readonly hostId: string;
  readonly storage: SharedStorage;
  readonly hosts: Pick<Hosts, 'get'>;
  /** How long another host is silent before it is lost; 0: until an operator says so. */
  readonly hostLostMs: number;
  readonly log: Logger;
}

/** Hosts whose machines may be taken, until it is disposed of: no agent of them starts before. */
interface LostHosts extends AsyncDisposable {
  readonly hostIds: readonly string[];
}

interface Sight {
  readonly text: string | undefined;
  /** Since when the file has had this text, by `performance.now()`. */
  readonly since: number;
}

/** How many live hosts each host watches: those that follow it, so that every host is watched. */
const WATCHED_MIN = 3;

/**
 * Shows on the storage that this host is alive, and finds hosts that are not. A host is lost when
 * an operator said that it is off, or when all of this holds: this host has seen no sign of it for
 * `hostLostMs` by its own clock, neither on the storage nor in the directory; the storage has given
 * up the lock that its agent held; and this host has seen, of whichever host, that such locks keep
 * others out. Even then a machine that runs keeps its own lock (shim.c).
 */
export class HostWatch {
  readonly #deps: HostWatchDeps;
  readonly #sights = new Map<string, Sight>();
  readonly #reported = new Set<string>();
  #own: FileHandle | undefined;
  #lock: FileLock | undefined;
  #locksExclude = false;
  #hasLinks = false;

  private constructor(deps: HostWatchDeps) {
    this.#deps = deps;
  }

  /** @throws Error when another host is still taking what this one had */
  static async open(deps: HostWatchDeps): Promise<HostWatch> {
    const watch = new HostWatch(deps);
    await watch.#takeOwn(SYSTEM_LIMITS.startStepMsMax);
    await watch.beat();
    return watch;
  }

  /** Shows that this host is alive. @throws Error when the storage does not take it */
  async beat(): Promise<void> {
    try {
      await this.#takeOwn(0);
      await this.#own?.write(newSign(this.#hasLinks), 0);
    } catch (error) {
      await this.#releaseOwn();
      throw error;
    }
  }

  /** From the next sign on, this host tells that each of its machines has a link to its base. */
  showLinks(): void {
    this.#hasLinks = true;
  }

  /** Hosts whose machines here may lack links: no sign of the host says that they have them. */
  async withoutLinks(): Promise<string[]> {
    const without: string[] = [];
    for (const hostId of await this.#deps.storage.hosts()) {
      if (!tellsOfLinks(await readOptional(this.#pathOf(hostId)))) without.push(hostId);
    }
    return without;
  }

  /**
   * The hosts that have machines here and are lost; dispose of them before the next call.
   * @throws Error when the storage or the directory cannot be read; no lock is held then
   */
  async lost(): Promise<LostHosts> {
    await using locks = new AsyncDisposableStack();
    const hostIds: string[] = [];
    let alive = 0;
    for (const hostId of await this.#others()) {
      const silentMs = await this.#look(hostId);
      if (silentMs < LIMITS.hostTtlMs) {
        alive += 1;
        if (alive >= WATCHED_MIN) break;
        continue;
      }
      if (await this.#isLost(hostId, silentMs, locks)) hostIds.push(hostId);
    }
    const kept = locks.move();
    return { hostIds, [Symbol.asyncDispose]: () => kept.disposeAsync() };
  }

  /**
   * Holds the lock of a host that this one has seen no sign of for long enough: no agent of it
   * runs, or starts, until it is disposed of.
   * @returns undefined while there may be one
   */
  async lockSilent(hostId: string): Promise<FileLock | undefined> {
    if ((await this.#look(hostId)) < LIMITS.hostTtlMs) return undefined;
    return this.#tryLock(hostId);
  }

  async close(): Promise<void> {
    await this.#releaseOwn();
  }

  /** All others, from the one that follows this host in the order of their ids. */
  async #others(): Promise<string[]> {
    const { hostId, storage } = this.#deps;
    const ids = (await storage.hosts()).filter((id) => id !== hostId).toSorted();
    const at = ids.findIndex((id) => id > hostId);
    return at === -1 ? ids : [...ids.slice(at), ...ids.slice(0, at)];
  }

  /** @returns for how long this host has seen no sign of the other */
  async #look(hostId: string): Promise<number> {
    const now = performance.now();
    const text = await readOptional(this.#pathOf(hostId));
    const before = this.#sights.get(hostId);
    if (before !== undefined && before.text === text) return now - before.since;
    this.#sights.set(hostId, { text, since: now });
    this.#reported.delete(hostId);
    // A living host's lock must keep this host out.
    if (before !== undefined && !this.#locksExclude) {
      await using lock = await this.#tryLock(hostId);
      if (lock === undefined) this.#locksExclude = true;
    }
    return 0;
  }

  /** @param locks gets the lock of a host that no operator said is off */
  async #isLost(hostId: string, silentMs: number, locks: AsyncDisposableStack): Promise<boolean> {
    const { storage, hosts, hostLostMs, log } = this.#deps;
    if ((await storage.list({ hostId })).length === 0) return false;
    const entry = await hosts.get(hostId);
    if (isOff(entry)) return true;
    if (hostLostMs === 0 || silentMs < hostLostMs || (entry !== undefined && isPresent(entry)))
      return false;
    const lock = this.#locksExclude ? await this.#tryLock(hostId) : undefined;
    if (lock !== undefined) {
      locks.use(lock);
      return true;
    }
    if (!this.#reported.has(hostId)) log.warn({ lostHostId: hostId }, 'host:lostUnfenced');
    this.#reported.add(hostId);
    return false;
  }

  async #tryLock(hostId: string): Promise<FileLock | undefined> {
    try {
      return await takeLock(this.#pathOf(hostId));
    } catch (error) {
      if (errnoOf(error) === 'EAGAIN') return undefined;
      throw error;
    }
  }

  async #takeOwn(patienceMs: number): Promise<void> {
    const until = performance.now() + patienceMs;
    while (this.#own === undefined) {
      const lock = await this.#tryLock(this.#deps.hostId);
      if (lock !== undefined) {
        this.#lock = lock;
        this.#own = await open(this.#pathOf(this.#deps.hostId), 'r+');
      } else if (performance.now() > until) {
        throw new Error('another host is taking the sandboxes of this one, which it found silent');
      } else {
        await sleep(SYSTEM_LIMITS.hostReportMs / 10);
      }
    }
  }

  async #releaseOwn(): Promise<void> {
    const [own, lock] = [this.#own, this.#lock];
    this.#own = undefined;
    this.#lock = undefined;
    await own?.close().catch(() => undefined);
    await lock?.[Symbol.asyncDispose]();
  }

  #pathOf(hostId: string): string {
    return join(this.#deps.storage.paths.alive, hostId);
  }
}

/** Whether an operator has said that the host is off: by fencing it, or by removing it. */
const isOff = (entry: HostEntry | undefined): boolean => entry === undefined || isFenced(entry);
