import { BlockList } from 'node:net';
import type { HostEgress } from './egress-settings.ts';

const toList = (cidrs: readonly string[]): BlockList => {
  const list = new BlockList();
  for (const cidr of cidrs) {
    const [address = '', bits = '32'] = cidr.split('/');
    list.addSubnet(address, Number(bits), 'ipv4');
  }
  return list;
};

/** Knows the addresses that no guest reaches. The router's rules refuse them as well. */
export class AddressGuard {
  readonly #closed: BlockList;
  readonly #private: BlockList;
  readonly #opened: BlockList;

  constructor(host: Pick<HostEgress, 'closed' | 'private' | 'opened'>) {
    this.#closed = toList(host.closed);
    this.#private = toList(host.private);
    this.#opened = toList(host.opened);
  }

  isClosed(address: string): boolean {
    if (this.#closed.check(address, 'ipv4')) return true;
    return this.#private.check(address, 'ipv4') && !this.#opened.check(address, 'ipv4');
  }
}
