import { formatBytes } from './text.ts';

/** How much there is to do, as far as it is known. */
export interface Total {
  readonly files?: number;
  readonly bytes?: number;
}

const EVERY_MS = 100;
/** Work that ends sooner shows no progress. */
const SILENT_MS = 400;
const CLEAR_LINE = '\r\u001b[2K';

const of = (total: string | undefined): string => (total === undefined ? '' : ` of ${total}`);

/** Shows how far work is and how fast it goes, in one line; gone when the work is done. */
export class Progress implements Disposable {
  readonly #label: string;
  readonly #stream: NodeJS.WriteStream | undefined;
  readonly #timer: NodeJS.Timeout | undefined;
  readonly #begunAt = performance.now();
  #total: Total;
  #files = 0;
  #bytes = 0;
  #isShown = false;

  /** @param stream the terminal; undefined: nothing is shown */
  constructor(label: string, total: Total, stream: NodeJS.WriteStream | undefined) {
    this.#label = label;
    this.#total = total;
    this.#stream = stream;
    if (stream !== undefined) this.#timer = setInterval(() => this.#show(), EVERY_MS).unref();
  }

  /** More is known about how much there is to do. */
  expect(total: Total): void {
    this.#total = total;
  }

  addBytes(bytes: number): void {
    this.#bytes += bytes;
  }

  addFile(): void {
    this.#files += 1;
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer);
    if (this.#isShown) this.#stream?.write(CLEAR_LINE);
  }

  #show(): void {
    const elapsedMs = performance.now() - this.#begunAt;
    if (this.#stream === undefined || elapsedMs < SILENT_MS) return;
    const line = [this.#label, ...this.#figures(elapsedMs / 1_000)].join('  ');
    this.#isShown = true;
    this.#stream.write(`${CLEAR_LINE}${line.slice(0, this.#stream.columns - 1)}`);
  }

  #figures(seconds: number): string[] {
    const { files, bytes } = this.#total;
    const rate = this.#bytes / seconds;
    const left = bytes === undefined || rate === 0 ? undefined : (bytes - this.#bytes) / rate;
    return [
      ...(this.#files === 0 && files === undefined
        ? []
        : [`${this.#files}${of(files?.toString())} files`]),
      ...(this.#bytes === 0
        ? [`${Math.floor(seconds)} s`]
        : [
            formatBytes(this.#bytes) + of(bytes === undefined ? undefined : formatBytes(bytes)),
            `${formatBytes(rate)}/s`,
          ]),
      ...(left === undefined || left < 1 ? [] : [`${Math.ceil(left)} s left`]),
    ];
  }
}
