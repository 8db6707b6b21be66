import { Resolver as Client } from 'node:dns/promises';
import { errnoOf } from '../../shared/errors.ts';

const TIMEOUT_MS = 3_000;
const TRIES = 2;
const NO_ADDRESS = new Set(['ENOTFOUND', 'ENODATA']);
/** For how long an answer counts at most; the requests of one connection come faster. */
const KEPT_MS_MAX = 2_000;
const KEPT_MAX = 1_000;

interface Kept {
  readonly addresses: Promise<string[]>;
  readonly until: number;
}

/** Asks the host's resolver, which caches. */
export class Resolver {
  readonly #client = new Client({ timeout: TIMEOUT_MS, tries: TRIES });
  readonly #kept = new Map<string, Kept>();

  /** @param server `address` or `address:port` */
  constructor(server: string) {
    this.#client.setServers([server]);
  }

  /** @returns IPv4 addresses, none for an unknown name @throws Error when nobody answers */
  resolve(name: string): Promise<string[]> {
    const now = performance.now();
    const kept = this.#kept.get(name);
    if (kept !== undefined && kept.until > now) return kept.addresses;
    this.#kept.delete(name);
    if (this.#kept.size >= KEPT_MAX) this.#kept.delete(this.#kept.keys().next().value ?? '');
    const addresses = this.#ask(name);
    addresses.catch(() => this.#kept.delete(name));
    this.#kept.set(name, { addresses, until: now + KEPT_MS_MAX });
    return addresses;
  }

  async #ask(name: string): Promise<string[]> {
    try {
      return await this.#client.resolve4(name);
    } catch (error) {
      if (NO_ADDRESS.has(errnoOf(error) ?? '')) return [];
      throw error;
    }
  }
}
