import { Resolver as Client } from 'node:dns/promises';
import { errnoOf } from '../../../shared/errors.ts';
import { PROXY_LIMITS } from './limits.ts';

const TIMEOUT_MS = 3_000;
const TRIES = 2;
const NO_ADDRESS = new Set(['ENOTFOUND', 'ENODATA']);
/** For how long an answer counts at most; the requests of one connection come faster. */
const KEPT_MS_MAX = 2_000;

interface Kept {
  readonly addresses: Promise<string[]>;
  readonly until: number;
}

/** Finds the addresses of names. */
export interface Names {
  /** @returns IPv4 addresses, none for an unknown name @throws Error when nobody answers */
  resolve(name: string): Promise<string[]>;
}

/** Asks the host's resolver. */
export class Resolver implements Names {
  readonly #client = new Client({ timeout: TIMEOUT_MS, tries: TRIES });

  /** @param server `address` or `address:port` */
  constructor(server: string) {
    this.#client.setServers([server]);
  }

  async resolve(name: string): Promise<string[]> {
    try {
      return await this.#client.resolve4(name);
    } catch (error) {
      if (NO_ADDRESS.has(errnoOf(error) ?? '')) return [];
      throw error;
    }
  }
}

/**
 * The names that one slot has looked up. A guest chooses them, and they stay under way when it
 * hangs up, so their number is limited: the host's resolver is there for all slots. Answers are
 * kept for the slot alone, so that none tells what others have asked for.
 */
export class NamesOfSlot implements Names {
  readonly #resolver: Names;
  readonly #underWay = new Set<string>();
  readonly #kept = new Map<string, Kept>();

  constructor(resolver: Names) {
    this.#resolver = resolver;
  }

  /** @throws Error also when too many names of the slot are under way */
  async resolve(name: string): Promise<string[]> {
    const now = performance.now();
    const kept = this.#kept.get(name);
    if (kept !== undefined && kept.until > now) return kept.addresses;
    const most = PROXY_LIMITS.namesPerSlotMax;
    if (!this.#underWay.has(name) && this.#underWay.size >= most) {
      throw new Error('too many names of this sandbox are being looked up');
    }
    this.#kept.delete(name);
    if (this.#kept.size >= most) this.#kept.delete(this.#kept.keys().next().value ?? '');
    const addresses = this.#ask(name);
    addresses.catch(() => this.#kept.delete(name));
    this.#kept.set(name, { addresses, until: now + KEPT_MS_MAX });
    return addresses;
  }

  async #ask(name: string): Promise<string[]> {
    this.#underWay.add(name);
    try {
      return await this.#resolver.resolve(name);
    } finally {
      this.#underWay.delete(name);
    }
  }
}
