import type { ProxyDecision } from './egress-settings.ts';

const KINDS_MAX = 1000;

type Kind = Omit<ProxyDecision, 'count' | 'time'>;

interface Counted {
  readonly kind: Kind;
  count: number;
  at: number;
}

/** The last decisions of one slot; equal ones are counted together. */
export class Decisions {
  readonly #kindsMax: number;
  /** In the order of their last time. */
  readonly #kinds = new Map<string, Counted>();

  constructor(kindsMax = KINDS_MAX) {
    this.#kindsMax = kindsMax;
  }

  add(kind: Kind): void {
    const { name = '', address = '', protocol, port, allowed, rule } = kind;
    const key = [name, address, protocol, port, allowed, rule].join(' ');
    const counted = this.#kinds.get(key) ?? { kind, count: 0, at: 0 };
    counted.count += 1;
    counted.at = Date.now();
    this.#kinds.delete(key);
    this.#kinds.set(key, counted);
    if (this.#kinds.size > this.#kindsMax)
      this.#kinds.delete(this.#kinds.keys().next().value ?? '');
  }

  /** Newest first. */
  list(): ProxyDecision[] {
    const kinds = [...this.#kinds.values()].toReversed();
    return kinds.map(({ kind, count, at }) => ({
      ...{ time: new Date(at).toISOString(), ...kind, count },
    }));
  }
}
