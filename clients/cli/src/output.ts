import { styleText } from 'node:util';
import { Progress, type Total } from './progress.ts';
import { type Column, formatTable } from './table.ts';
import { visible, visibleJson } from './text.ts';

/** How results are printed. */
export interface OutputOptions {
  readonly json?: boolean | undefined;
  readonly quiet?: boolean | undefined;
}

/** How a list or a record of things is shown. */
export interface Shown<T> {
  readonly columns: readonly Column<T>[];
  /** The id that `--quiet` prints of each row. */
  readonly id: (row: T) => string;
}

/** Results go to stdout: as tables for people, as JSON for programs, or as names alone. */
export class Output {
  readonly isJson: boolean;
  readonly isQuiet: boolean;

  constructor({ json = false, quiet = false }: OutputOptions) {
    this.isJson = json;
    this.isQuiet = quiet;
  }

  /** @param values what `--json` prints of the rows: what the API answered */
  list<T>(rows: readonly T[], { columns, id }: Shown<T>, values: readonly unknown[] = rows): void {
    if (this.isJson) return this.json(values);
    if (this.isQuiet) {
      // Programs get names as they are; a terminal must not obey what a name holds.
      const shown = process.stdout.isTTY ? visible : (text: string): string => text;
      return this.text(rows.map((row) => `${shown(id(row))}\n`).join(''));
    }
    this.text(formatTable(rows, columns, roomOf(process.stdout)));
  }

  /** Prints an object, a line for each of its fields; empty ones are left out. */
  record(value: object, fields: readonly (readonly [string, string])[], id: string): void {
    if (this.isJson) return this.json(value);
    if (this.isQuiet) return this.text(`${id}\n`);
    const width = Math.max(...fields.map(([name]) => name.length));
    const lines = fields
      .filter(([, text]) => text !== '')
      .map(([name, text]) => `${paint('dim', name.padEnd(width))}  ${visible(text)}\n`);
    this.text(lines.join(''));
  }

  /**
   * Reports a change in three forms: a sentence for people, the value for programs, the id for
   * scripts.
   */
  done(sentence: string, value: unknown, id: string): void {
    if (this.isJson) return this.json(value);
    this.text(`${this.isQuiet ? id : visible(sentence)}\n`);
  }

  json(value: unknown): void {
    const indent = process.stdout.isTTY ? 2 : undefined;
    this.text(`${visibleJson(value, indent)}\n`);
  }

  text(text: string): void {
    process.stdout.write(text);
  }

  /** Shows that something is under way for as long as the work takes. */
  async during<T>(label: string, work: () => Promise<T>): Promise<T> {
    using _progress = this.progress(label);
    return await work();
  }

  /** Progress on stderr: only on a terminal, and not when somebody wants to hear nothing. */
  progress(label: string, total: Total = {}): Progress {
    const isShown = process.stderr.isTTY && !this.isQuiet && !this.isJson;
    return new Progress(label, total, isShown ? process.stderr : undefined);
  }

  /** Something to know besides the result. */
  note(sentence: string): void {
    if (!this.isQuiet && !this.isJson) process.stderr.write(`${visible(sentence)}\n`);
  }
}

const roomOf = (stream: NodeJS.WriteStream): number | undefined =>
  stream.isTTY ? stream.columns : undefined;

/** Colours are for terminals whose user has not refused them. */
const hasColours = (stream: NodeJS.WriteStream): boolean =>
  stream.isTTY && (process.env['NO_COLOR'] ?? '') === '' && process.env['TERM'] !== 'dumb';

/** Dresses text for stdout. */
export const paint = (style: Parameters<typeof styleText>[0], text: string): string =>
  hasColours(process.stdout) ? styleText(style, text, { validateStream: false }) : text;
