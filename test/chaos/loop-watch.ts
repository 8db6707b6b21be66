import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Findings } from './findings.ts';

const LOOKS_EVERY_MS = 20;

/**
 * Looks all the time at the kernel's own account of loop devices: two on one image of the storage
 * are two writers of one file system.
 */
export class LoopWatch implements AsyncDisposable {
  readonly #storage: string;
  readonly #findings: Findings;
  readonly #reported = new Set<string>();
  #stopped = false;
  readonly #watching: Promise<void>;

  constructor(storage: string, findings: Findings) {
    this.#storage = storage;
    this.#findings = findings;
    this.#watching = this.#watch();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped = true;
    await this.#watching;
  }

  async #watch(): Promise<void> {
    while (!this.#stopped) {
      this.#look();
      await sleep(LOOKS_EVERY_MS);
    }
  }

  #look(): void {
    const images = new Set<string>();
    for (const name of readdirSync('/sys/block')) {
      if (!name.startsWith('loop')) continue;
      let image: string;
      try {
        image = readFileSync(`/sys/block/${name}/loop/backing_file`, 'utf8').trim();
      } catch {
        continue; // Not in use.
      }
      if (!image.startsWith(this.#storage)) continue;
      if (images.has(image) && !this.#reported.has(image)) {
        this.#reported.add(image);
        this.#findings.report(`two loop devices have one image: ${image}`);
      }
      images.add(image);
    }
  }
}
