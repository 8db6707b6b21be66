import { type Shape, shapeName } from '../../machines/driver.ts';

const MINUTE_MS = 60_000;
/** Requests are counted by the minute; a kind stays wanted while one of so many had some. */
const MINUTES = 10;

/** The image or snapshot that a machine begins with; the default image, if both are undefined. */
export interface Beginning {
  readonly digest: string | undefined;
  readonly snapshotId: string | undefined;
}

/** A shape, and the image or snapshot that the machine begins with. */
export interface WantedMachine extends Beginning {
  readonly name: string;
  readonly shape: Shape;
}

interface Demand extends WantedMachine {
  /** Requests of each minute that had some, the latest at the end. */
  readonly minutes: { readonly minute: number; requests: number }[];
}

const peakOf = ({ minutes }: Demand): number =>
  Math.max(...minutes.map(({ requests }) => requests));

/**
 * The kinds of machines that were requested in the last ten minutes, and how many of each are worth
 * keeping ready: as many as were requested in the busiest of these minutes. Kinds share the host's
 * prewarmed machines by their demand, because an order by the last request would evict and start
 * machines at each turn of two busy kinds.
 */
export class WantedMachines {
  readonly #machinesMax: number;
  /** By name, the one requested last at the end; at most `machinesMax`. */
  readonly #demands = new Map<string, Demand>();

  constructor(machinesMax: number) {
    this.#machinesMax = machinesMax;
  }

  get size(): number {
    return this.#demands.size;
  }

  /** Counts a request. @param now in milliseconds of a clock that never goes back */
  request(shape: Shape, beginning: Beginning, now: number): WantedMachine {
    const { vcpuCount, memSizeMib } = shape;
    const { digest, snapshotId } = beginning;
    const name = `${shapeName(shape)} ${snapshotId ?? digest ?? ''}`;
    const demand = this.#demands.get(name) ?? {
      ...{ name, shape: { vcpuCount, memSizeMib }, digest, snapshotId, minutes: [] },
    };
    const minute = Math.floor(now / MINUTE_MS);
    const last = demand.minutes.at(-1);
    if (last?.minute === minute) last.requests += 1;
    else demand.minutes.push({ minute, requests: 1 });
    this.#demands.delete(name);
    this.#demands.set(name, demand);
    const [oldest] = this.#demands.keys();
    if (this.#demands.size > this.#machinesMax && oldest !== undefined)
      this.#demands.delete(oldest);
    return demand;
  }

  forget(name: string): void {
    this.#demands.delete(name);
  }

  /** Forgets every kind that begins with this snapshot. */
  forgetSnapshot(snapshotId: string): void {
    for (const demand of this.#demands.values()) {
      if (demand.snapshotId === snapshotId) this.#demands.delete(demand.name);
    }
  }

  /**
   * How many of each kind to keep ready, the one requested last first; together no more than
   * `machinesMax`.
   */
  shares(now: number): readonly { readonly wanted: WantedMachine; readonly count: number }[] {
    this.#expire(now);
    const demands = [...this.#demands.values()].toReversed();
    const free = this.#machinesMax - demands.length;
    const more = demands.map((demand) => peakOf(demand) - 1);
    const all = more.reduce((sum, each) => sum + each, 0);
    const part = Math.min(1, free / Math.max(1, all));
    return demands.map((wanted, index) => ({
      wanted,
      count: 1 + Math.floor((more[index] ?? 0) * part),
    }));
  }

  #expire(now: number): void {
    const first = Math.floor(now / MINUTE_MS) - MINUTES + 1;
    for (const { name, minutes } of this.#demands.values()) {
      while (minutes[0] !== undefined && minutes[0].minute < first) minutes.shift();
      if (minutes.length === 0) this.#demands.delete(name);
    }
  }
}
