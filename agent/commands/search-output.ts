import type { StoppedReason } from '../../shared/schemas/grep.ts';
import { COMMAND_LIMITS } from './limits.ts';
import type { OutputSink } from './output-tail.ts';
import { SCHEMA_LIMITS } from '../../shared/schemas/limits.ts';

const HEADER_BYTES = 5;
const MATCH_HEADER_BYTES = 13;
const STATISTICS_BYTES = 32;
const PATH_BYTES_MAX = 4096;
const PROBLEM_BYTES_MAX = 1024;

const MATCH = 1;
const STATISTICS = 2;
const PROBLEM = 3;
const END = 4;

const LENGTHS_MAX: Readonly<Record<number, number>> = {
  [MATCH]: MATCH_HEADER_BYTES + PATH_BYTES_MAX + SCHEMA_LIMITS.grepTextBytesMax,
  [STATISTICS]: STATISTICS_BYTES,
  [PROBLEM]: PROBLEM_BYTES_MAX,
  [END]: 1,
};

const REASONS: readonly StoppedReason[] = [
  'completed',
  'incomplete',
  'max_results',
  'deadline',
  'list_failed',
];

/** The search program's last reason: no engine accepts the pattern. */
const REFUSED = REASONS.length;

export interface SearchStatistics {
  readonly filesScanned: number;
  readonly listingUs: number;
  readonly grepUs: number;
  readonly computeUs: number;
}

export interface SearchOutputOptions {
  /** Prepended to each file's path: the searched directory with a trailing slash, or nothing. */
  readonly prefix: string;
  readonly maxResults: number;
  /**
   * Takes matches as JSON arrays while the search runs; absent: they are kept until they are taken.
   */
  readonly onMatches?: ((matches: Buffer) => void) | undefined;
  /** Called when no more output is read: enough was found, or the output is malformed. */
  readonly onClosed: () => void;
}

/**
 * Parses the output of the search program; search.c describes its frames. The program works on
 * hostile files, so its output is not trusted: every length and number is checked, and what is kept
 * is bounded.
 */
export class SearchOutput implements OutputSink {
  readonly #options: SearchOutputOptions;
  #unread: Buffer = Buffer.alloc(0);
  /** Each match as JSON, the form in which it is sent, so that its size is known. */
  #matches: Buffer[] = [];
  /** Count of all matches, also those that were taken. */
  #matchCount = 0;
  #matchBytes = 0;
  #statistics: SearchStatistics = { filesScanned: 0, listingUs: 0, grepUs: 0, computeUs: 0 };
  #problem: string | undefined;
  #reason: StoppedReason | undefined;
  #isRefused = false;

  constructor(options: SearchOutputOptions) {
    this.#options = options;
  }

  get statistics(): SearchStatistics {
    return this.#statistics;
  }

  /** A message that says why the search is incomplete. */
  get problem(): string | undefined {
    return this.#problem;
  }

  /** Why the search ended; undefined while it runs. The first reason counts. */
  get reason(): StoppedReason | undefined {
    return this.#reason;
  }

  /** The pattern is not valid; the problem says why. */
  get isPatternRefused(): boolean {
    return this.#isRefused;
  }

  /** The matches that were not taken before, as one JSON array. */
  takeMatches(): Buffer {
    const parts = this.#matches.flatMap((match, index) => [index === 0 ? '[' : ',', match]);
    this.#matches = [];
    const texts = parts.length === 0 ? ['[', ']'] : [...parts, ']'];
    return Buffer.concat(
      texts.map((part) => (typeof part === 'string' ? Buffer.from(part) : part)),
    );
  }

  /** Ends the search from outside; later output is ignored. */
  end(reason: StoppedReason, problem?: string): void {
    if (this.#reason !== undefined) return;
    this.#reason = reason;
    this.#problem ??= problem;
    this.#unread = Buffer.alloc(0);
  }

  write(chunk: Buffer): undefined {
    if (this.#reason !== undefined) return;
    this.#unread = this.#unread.length === 0 ? chunk : Buffer.concat([this.#unread, chunk]);
    try {
      while (this.#takeFrame());
    } catch (error) {
      if (!(error instanceof BadFrame)) throw error;
      this.#close('incomplete', `the search program failed: ${error.message}`);
    }
    if (this.#matches.length > 0) this.#options.onMatches?.(this.takeMatches());
  }

  #close(reason: StoppedReason, problem?: string): void {
    this.end(reason, problem);
    this.#options.onClosed();
  }

  #takeFrame(): boolean {
    const unread = this.#unread;
    if (this.#reason !== undefined || unread.length < HEADER_BYTES) return false;
    const kind = unread.readUInt8(0);
    const length = unread.readUInt32LE(1);
    const lengthMax = LENGTHS_MAX[kind];
    if (lengthMax === undefined) throw new BadFrame(`frame of kind ${kind}`);
    if (length > lengthMax) throw new BadFrame(`frame of ${length} bytes`);
    if (unread.length < HEADER_BYTES + length) return false;
    this.#unread = unread.subarray(HEADER_BYTES + length);
    this.#take(kind, unread.subarray(HEADER_BYTES, HEADER_BYTES + length));
    return true;
  }

  #take(kind: number, payload: Buffer): void {
    if (kind === MATCH) {
      this.#takeMatch(payload);
    } else if (kind === STATISTICS) {
      this.#takeStatistics(payload);
    } else if (kind === PROBLEM) {
      this.#problem ??= payload.toString('utf8').trim();
    } else {
      const code = payload.length === 1 ? payload.readUInt8() : undefined;
      this.#isRefused = code === REFUSED;
      const reason = this.#isRefused ? 'incomplete' : REASONS[code ?? REASONS.length];
      if (reason === undefined) throw new BadFrame('unknown end');
      this.end(reason);
    }
  }

  #takeMatch(payload: Buffer): void {
    if (payload.length < MATCH_HEADER_BYTES) throw new BadFrame('match is too short');
    const line = readNumber(payload, 0);
    const pathEnd = MATCH_HEADER_BYTES + payload.readUInt32LE(8);
    const flag = payload.readUInt8(12);
    const isPath = pathEnd > MATCH_HEADER_BYTES && pathEnd <= MATCH_HEADER_BYTES + PATH_BYTES_MAX;
    if (line === 0 || flag > 1 || !isPath || pathEnd > payload.length) {
      throw new BadFrame('match is not valid');
    }
    if (payload.length - pathEnd > SCHEMA_LIMITS.grepTextBytesMax)
      throw new BadFrame('text is too long');
    if (this.#matchCount === this.#options.maxResults) throw new BadFrame('too many matches');
    const match = {
      file: this.#options.prefix + payload.toString('utf8', MATCH_HEADER_BYTES, pathEnd),
      line,
      text: payload.toString('utf8', pathEnd), // Bytes that are not UTF-8 become U+FFFD.
      ...(flag === 1 ? { truncated: true } : {}),
    };
    this.#keep(Buffer.from(JSON.stringify(match)));
  }

  #keep(match: Buffer): void {
    const bytes = this.#matchBytes + match.length + 1;
    if (bytes > COMMAND_LIMITS.grepMatchesBytesMax) return this.#close('max_results');
    this.#matches.push(match);
    this.#matchCount += 1;
    this.#matchBytes = bytes;
  }

  #takeStatistics(payload: Buffer): void {
    if (payload.length !== STATISTICS_BYTES) throw new BadFrame('statistics have the wrong length');
    this.#statistics = {
      filesScanned: readNumber(payload, 0),
      listingUs: readNumber(payload, 8),
      grepUs: readNumber(payload, 16),
      computeUs: readNumber(payload, 24),
    };
  }
}

class BadFrame extends Error {}

function readNumber(payload: Buffer, offset: number): number {
  const value = payload.readBigUInt64LE(offset);
  if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw new BadFrame('number is too large');
  return Number(value);
}
