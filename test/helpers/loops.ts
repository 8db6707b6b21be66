import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';

const LOOK_EVERY_MS = 50;

/**
 * The files of all loop devices of this machine, by the device's name, as the kernel has them. It
 * is synchronous since every stack looks twenty times a second: sysfs answers at once, and a read
 * through the thread pool costs many times as much.
 */
export function loopFiles(): Map<string, string> {
  const found = new Map<string, string>();
  for (const name of readdirSync('/sys/block')) {
    // The file exists only while something is attached to the device.
    const path = join('/sys/block', name, 'loop/backing_file');
    if (!name.startsWith('loop') || !existsSync(path)) continue;
    try {
      found.set(name, readFileSync(path, 'utf8').trim());
    } catch {
      // The loop device was detached meanwhile.
    }
  }
  return found;
}

/** The loop devices attached to the image. */
export function loopsOn(image: string): string[] {
  return [...loopFiles()].filter(([, file]) => file === image).map(([name]) => name);
}

const DISK_IMAGE = 'image.ext4';

/**
 * Hosts may have the same storage at different places. Disks of sandboxes are at one place each.
 */
const imageOf = (file: string): string =>
  basename(file) === DISK_IMAGE ? basename(dirname(file)) : file;

/**
 * Looks all the time whether two loop devices stand on one image below a directory: two writers,
 * who destroy its file system.
 */
export class LoopWatch {
  readonly #faults = new Set<string>();
  readonly #directory: string;
  readonly #onFault: (fault: string) => void;
  readonly #timer: NodeJS.Timeout;
  #isShutOut: (file: string) => boolean = () => false;

  /** @param onFault is called once for each fault */
  constructor(directory: string, onFault: (fault: string) => void = () => undefined) {
    this.#directory = directory;
    this.#onFault = onFault;
    this.#timer = setInterval(() => this.#look(), LOOK_EVERY_MS).unref();
  }

  /** @param isShutOut whether a file is on storage that accepts no writes of its host any more */
  ignore(isShutOut: (file: string) => boolean): void {
    this.#isShutOut = isShutOut;
  }

  /** @returns what was found */
  stop(): string[] {
    clearInterval(this.#timer);
    return [...this.#faults];
  }

  #look(): void {
    const seen = new Map<string, string>();
    for (const [name, file] of loopFiles()) {
      if (!file.startsWith(`${this.#directory}/`)) continue;
      if (this.#isShutOut(file)) continue;
      const image = imageOf(file);
      const other = seen.get(image);
      if (other !== undefined) this.#report(`${file} is attached to ${other} and ${name}`);
      seen.set(image, name);
    }
  }

  #report(fault: string): void {
    if (this.#faults.has(fault)) return;
    this.#faults.add(fault);
    this.#onFault(fault);
  }
}
