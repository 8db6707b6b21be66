import { Resolver as Client } from 'node:dns/promises';
import { errnoOf } from '../../shared/errors.ts';

const TIMEOUT_MS = 3_000;
const TRIES = 2;
const NO_ADDRESS = new Set(['ENOTFOUND', 'ENODATA']);

/** Asks a slot's resolver, which caches. */
export class Resolver {
  readonly #client = new Client({ timeout: TIMEOUT_MS, tries: TRIES });

  /** @param server `address` or `address:port` */
  constructor(server: string) {
    this.#client.setServers([server]);
  }

  /** @returns IPv4 addresses, none for an unknown name @throws Error when nobody answers */
  async resolve(name: string): Promise<string[]> {
    try {
      return await this.#client.resolve4(name);
    } catch (error) {
      if (NO_ADDRESS.has(errnoOf(error) ?? '')) return [];
      throw error;
    }
  }
}
