import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';

const LOOK_EVERY_MS = 50;

/** The files of all loop devices of this machine, by the device's name, as the kernel has them. */
export async function loopFiles(): Promise<Map<string, string>> {
  const names = (await readdir('/sys/block')).filter((name) => name.startsWith('loop'));
  const files = await Promise.all(
    names.map((name) => {
      // The file exists only while something is attached to the device.
      const path = join('/sys/block', name, 'loop/backing_file');
      return readFile(path, 'utf8').then(
        (text) => text.trim(),
        () => '',
      );
    }),
  );
  const found = names.map((name, index) => [name, files[index] ?? ''] as const);
  return new Map(found.filter(([, file]) => file !== ''));
}

/** The loop devices attached to the image. */
export async function loopsOn(image: string): Promise<string[]> {
  return [...(await loopFiles())].filter(([, file]) => file === image).map(([name]) => name);
}

/**
 * Looks all the time whether two loop devices stand on one file below a directory: two writers, who
 * destroy its file system.
 */
export class LoopWatch {
  readonly #faults = new Set<string>();
  readonly #directory: string;
  readonly #onFault: (fault: string) => void;
  readonly #timer: NodeJS.Timeout;
  #looking: Promise<void> | undefined;

  /** @param onFault is called once for each fault */
  constructor(directory: string, onFault: (fault: string) => void = () => undefined) {
    this.#directory = directory;
    this.#onFault = onFault;
    this.#timer = setInterval(() => {
      this.#looking ??= this.#look().finally(() => {
        this.#looking = undefined;
      });
    }, LOOK_EVERY_MS).unref();
  }

  /** @returns what was found */
  async stop(): Promise<string[]> {
    clearInterval(this.#timer);
    await this.#looking;
    return [...this.#faults];
  }

  async #look(): Promise<void> {
    const seen = new Map<string, string>();
    for (const [name, file] of await loopFiles()) {
      if (!file.startsWith(`${this.#directory}/`)) continue;
      const other = seen.get(file);
      if (other !== undefined) this.#report(`${file} is attached to ${other} and ${name}`);
      seen.set(file, name);
    }
  }

  #report(fault: string): void {
    if (this.#faults.has(fault)) return;
    this.#faults.add(fault);
    this.#onFault(fault);
  }
}
