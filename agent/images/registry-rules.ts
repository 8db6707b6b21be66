import { lookup } from 'node:dns/promises';
import { isIPv4 } from 'node:net';
import { errnoOf } from '../../shared/errors.ts';
import { AddressGuard } from '../network/egress/address-guard.ts';
import { CLOSED_NETWORKS, PRIVATE_NETWORKS } from '../network/slots/closed-networks.ts';

const HTTPS_PORT = 443;
const HTTP_PORT = 80;

/** A registry that builds reach wherever it is (IMAGE_REGISTRIES). */
export interface KnownRegistry {
  readonly host: string;
  readonly port: number;
  /** Without TLS. */
  readonly isPlain: boolean;
}

/** @returns undefined unless the text is `http://host[:port]` or `https://host[:port]` */
export function parseRegistry(text: string): KnownRegistry | undefined {
  if (!/^https?:\/\/[A-Za-z0-9.-]+(?::\d{1,5})?$/u.test(text) || !URL.canParse(text))
    return undefined;
  const { protocol, hostname, port } = new URL(text);
  const isPlain = protocol === 'http:';
  return { host: hostname, port: Number(port || (isPlain ? HTTP_PORT : HTTPS_PORT)), isPlain };
}

/** A connection that a build may not make. */
export class ClosedAddressError extends Error {}

async function addressesOf(host: string): Promise<string[]> {
  try {
    return (await lookup(host, { all: true, family: 4 })).map(({ address }) => address);
  } catch (error) {
    if (errnoOf(error) !== 'ENOTFOUND') throw error;
    throw new ClosedAddressError(`there is no host ${host}`, { cause: error });
  }
}

const isLoopback = (host: string): boolean => host === 'localhost' || host.startsWith('127.');

/**
 * Decides which addresses builds of images may connect to: public addresses, and the registries
 * that were named.
 */
export class RegistryRules {
  readonly #known: readonly KnownRegistry[];
  readonly #guard = new AddressGuard({
    closed: CLOSED_NETWORKS,
    private: PRIVATE_NETWORKS,
    opened: [],
  });
  /** Addresses of the cluster's own parts, public ones among them. */
  readonly #clusterAddresses: () => Promise<readonly string[]>;

  constructor(known: readonly KnownRegistry[], clusterAddresses: () => Promise<readonly string[]>) {
    this.#known = known;
    this.#clusterAddresses = clusterAddresses;
  }

  /** Registries on the host's own loopback addresses, which no proxy is asked for. */
  get onLoopback(): readonly KnownRegistry[] {
    return this.#known.filter(({ host }) => isLoopback(host));
  }

  /** Whether the registry, as references name it, is spoken to without TLS. */
  isPlain(registry: string): boolean {
    return this.#known.some(({ host, port, isPlain }) => {
      const names = [`${host}:${port}`, ...(port === HTTP_PORT ? [host] : [])];
      return isPlain && names.includes(registry);
    });
  }

  isPlainAt(host: string, port: number): boolean {
    return this.#find(host, port)?.isPlain === true;
  }

  /**
   * The address to connect to. The name is resolved here and nowhere else, so it cannot mean
   * another address later.
   * @throws ClosedAddressError; Error when the name has no address
   */
  async resolve(host: string, port: number): Promise<string> {
    const found = isIPv4(host) ? [host] : await addressesOf(host);
    if (this.#find(host, port) !== undefined && found[0] !== undefined) return found[0];
    const cluster = new Set(await this.#clusterAddresses());
    const open = found.find((address) => !this.#guard.isClosed(address) && !cluster.has(address));
    if (open !== undefined) return open;
    throw new ClosedAddressError(`${host} has no address that builds may reach`);
  }

  #find(host: string, port: number): KnownRegistry | undefined {
    return this.#known.find((known) => known.host === host && known.port === port);
  }
}
