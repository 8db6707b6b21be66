import { type Process, type ProcessExit, SessionError } from '@berth/sdk';
import { UsageFailure } from './failure.ts';
import { codeAtEnd, killAtSignal, writeTo } from './process-io.ts';

/** Keys that our terminal handles itself. */
const TILDE = 0x7e;
const DOT = 0x2e;
const LINE_ENDS: ReadonlySet<number> = new Set([0x0d, 0x0a]);
const ROWS = 24;
const COLUMNS = 80;

/** The size of our terminal. */
export const terminalSize = (): { cols: number; rows: number } => ({
  cols: process.stdout.columns || COLUMNS,
  rows: process.stdout.rows || ROWS,
});

/**
 * @param instead how to do without one, as the end of a sentence
 * @throws UsageFailure unless somebody sits at a terminal
 */
export function requireTerminal(instead: string): void {
  if (process.stdin.isTTY && process.stdout.isTTY) return;
  throw new UsageFailure('this needs a terminal', instead);
}

/** Finds `~.` at the beginning of a line, with which ssh's users leave a connection that hangs. */
class LeaveSequence {
  #isAtLineStart = true;
  #hasTilde = false;

  /** @returns what is to be sent, and whether the user wants to leave */
  read(bytes: Uint8Array): { readonly sent: Uint8Array; readonly leaves: boolean } {
    const sent: number[] = [];
    for (const byte of bytes) {
      if (this.#hasTilde) {
        this.#hasTilde = false;
        if (byte === DOT) return { sent: Uint8Array.from(sent), leaves: true };
        if (byte !== TILDE) sent.push(TILDE); // `~~` sends one.
      } else if (this.#isAtLineStart && byte === TILDE) {
        this.#hasTilde = true;
        this.#isAtLineStart = false;
        continue;
      }
      sent.push(byte);
      this.#isAtLineStart = LINE_ENDS.has(byte);
    }
    return { sent: Uint8Array.from(sent), leaves: false };
  }
}

/** Keys go to the process as they are, Ctrl-C too, until this is disposed of. */
class RawKeys implements Disposable {
  constructor(receive: (bytes: Uint8Array) => void) {
    process.stdin.setRawMode(true);
    process.stdin.on('data', receive);
    process.once('exit', RawKeys.#restore); // However this program ends.
  }

  [Symbol.dispose](): void {
    process.off('exit', RawKeys.#restore);
    RawKeys.#restore();
    process.stdin.destroy();
  }

  static #restore(this: void): void {
    process.stdin.setRawMode(false);
  }
}

/**
 * Tells the process how large our terminal is, whenever it has changed, one size after the other.
 */
class SizeForwarding implements Disposable {
  readonly #process: Process;
  #isTelling = false;
  #isStale = false;

  constructor(remote: Process) {
    this.#process = remote;
    process.stdout.on('resize', this.#changed);
  }

  [Symbol.dispose](): void {
    process.stdout.off('resize', this.#changed);
  }

  readonly #changed = (): void => {
    this.#isStale = true;
    if (!this.#isTelling) this.#tell().catch(() => undefined); // The end of the session tells.
  };

  async #tell(): Promise<void> {
    this.#isTelling = true;
    try {
      while (this.#isStale) {
        this.#isStale = false;
        await this.#process.resize(terminalSize()).catch((error: unknown) => {
          if (!(error instanceof SessionError)) throw error;
        });
      }
    } finally {
      this.#isTelling = false;
    }
  }
}

/**
 * Passes keys, sizes and output until the process has ended.
 * @returns undefined when the user has left it
 */
async function passTerminal(remote: Process): Promise<ProcessExit | undefined> {
  let hasLeft = false;
  const keys = new LeaveSequence();
  const receive = (bytes: Uint8Array): void => {
    const { sent, leaves } = keys.read(bytes);
    if (sent.length > 0) remote.write(sent).catch(() => undefined); // The end of the session tells.
    if (!leaves) return;
    hasLeft = true;
    remote.detach();
  };
  using _size = new SizeForwarding(remote);
  using _keys = new RawKeys(receive);
  try {
    for await (const { bytes } of remote) await writeTo(process.stdout, bytes);
    return await remote.exit;
  } catch (error) {
    if (hasLeft) return undefined;
    throw error;
  }
}

/**
 * Connects our terminal with that of a process until it has ended.
 * @returns its exit code; undefined when the user has left it running, with `~.`
 */
export async function connectTerminal(remote: Process): Promise<number | undefined> {
  using signals = killAtSignal(remote);
  const exit = await passTerminal(remote);
  return exit === undefined ? undefined : codeAtEnd(exit, signals);
}
