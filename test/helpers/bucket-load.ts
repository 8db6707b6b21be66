import { createHash } from 'node:crypto';
import type { ApiClient } from './api.ts';
import type { ExecResult } from '../../shared/schemas/exec.ts';

/** A file's contents are the numbers from one to another, so that its sum is known beforehand. */
interface Version {
  readonly from: number;
  readonly count: number;
}

const SMALL = 2_000;
/** More than 8 MiB: uploaded in parts. */
const LARGE = 1_200_000;
/** Every so many versions one is large. */
const LARGE_EVERY = 9;
const ABSENT = 'absent';

const makes = ({ from, count }: Version): string => `seq ${from} ${from + count - 1}`;

function sumOf({ from, count }: Version): string {
  const numbers = Array.from({ length: count }, (_, i) => `${from + i}\n`);
  return createHash('sha256').update(numbers.join('')).digest('hex');
}

const coldVersion = (i: number): Version => ({ from: 10_000_000 + i * 7, count: SMALL });

/** Makes the objects that the load reads, with names from `cold-0` on. */
export const makeCold = (count: number): string =>
  `for i in $(seq 0 ${count - 1}); do seq $((10000000 + i * 7)) $((10000000 + i * 7 + ${SMALL - 1})) > cold-$i; done`;

/**
 * Writes files of a disk and reads others while the parts below it are killed, and knows what may
 * be there afterwards. What it finds wrong is in `violations`.
 */
export class BucketLoad {
  readonly #api: ApiClient;
  readonly #disk: string;
  readonly #coldCount: number;
  /** Sums that each file may have: one, unless a call failed since the last that did not. */
  readonly #possible = new Map<string, Set<string>>();
  readonly violations: string[] = [];
  acknowledged = 0;
  failed = 0;
  read = 0;
  #serial = 0;

  constructor(api: ApiClient, disk: string, coldCount: number) {
    this.#api = api;
    this.#disk = disk;
    this.#coldCount = coldCount;
  }

  /** Replaces the files of one directory, one after the other. */
  async write(directory: string, isOver: () => boolean): Promise<void> {
    for (let turn = 0; !isOver(); turn += 1) {
      const path = `${directory}/f${turn % 4}`;
      this.#serial += 1;
      const count = this.#serial % LARGE_EVERY === 0 ? LARGE : SMALL;
      const version = { from: this.#serial * 3, count };
      const made = `mkdir -p ${directory} && ${makes(version)} > ${directory}/.new`;
      const sums = this.#possible.get(path) ?? new Set([ABSENT]);
      this.#possible.set(path, sums.add(sumOf(version)));
      const reply = await this.#run(`${made} && mv ${directory}/.new ${path}`);
      if (reply?.exitCode === 0) this.#possible.set(path, new Set([sumOf(version)]));
    }
  }

  /** Reads objects that nobody has opened before, and some again. */
  async readCold(isOver: () => boolean): Promise<void> {
    for (let turn = 0; !isOver(); turn += 1) {
      const i = turn % this.#coldCount;
      const reply = await this.#run(`sha256sum < cold-${i} || echo unread`);
      if (reply === undefined) continue;
      const [sum = ''] = reply.stdout.split(/\s/u);
      if (sum === 'unread') continue;
      this.read += 1;
      if (sum !== sumOf(coldVersion(i))) this.violations.push(`cold-${i} was read as ${sum}`);
    }
  }

  /** Compares all files with what they may be. @param listing of sha256sum */
  check(name: string, listing: string): void {
    const seen = new Map(
      listing
        .split('\n')
        .filter(Boolean)
        .map((line) => [line.slice(66).replace(/^\.\//u, ''), line.slice(0, 64)]),
    );
    for (let i = 0; i < this.#coldCount; i += 1) {
      this.#possible.set(`cold-${i}`, new Set([sumOf(coldVersion(i))]));
    }
    for (const [path, sums] of this.#possible) {
      const sum = seen.get(path) ?? ABSENT;
      if (!sums.has(sum)) this.violations.push(`${path} is ${sum} on ${name}`);
      seen.delete(path);
    }
    for (const path of seen.keys()) {
      if (!path.endsWith('/.new')) this.violations.push(`${path} came up on ${name}`);
    }
  }

  /** @returns undefined when the call failed, and whether it was done is not known */
  async #run(command: string): Promise<ExecResult | undefined> {
    const path = `/api/disks/${this.#disk}/exec`;
    const { body } = await this.#api.call<{ success: boolean; data?: ExecResult }>('POST', path, {
      command,
    });
    if (!body.success || body.data === undefined) {
      this.failed += 1;
      return undefined;
    }
    this.acknowledged += 1;
    return body.data;
  }
}
