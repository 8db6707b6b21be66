import type { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';

const POLL_MS = 100;
/** After a server's last byte, its answer is taken to be complete. */
const ANSWER_QUIET_MS = 1_000;
/** So few bytes under TLS are seldom a request; rather an acknowledgement within HTTP/2. */
const NOTE_BYTES_MAX = 128;
const NOTE_QUIET_MS = 5_000;

/** A request, or a connection whose requests cannot be seen. */
interface Flight {
  readonly host: string;
  readonly isUnderWay: () => boolean;
}

/** Counts and limits the traffic of a slot that is under way. */
export class Flights {
  readonly #all = new Set<Flight>();

  /** A request to a host. @returns to be called when it has been answered */
  beginRequest(host: string): () => void {
    const flight = { host, isUnderWay: () => true };
    this.#all.add(flight);
    return () => this.#all.delete(flight);
  }

  /**
   * A connection through which an encrypted request may be under way. It counts as under way from
   * the client's bytes until the server has sent some and then nothing for a while.
   * @returns to be called when it has ended
   */
  beginTunnel(host: string, client: Duplex, server: Duplex): () => void {
    let askedBytes = 0;
    let lastAt = performance.now();
    client.on('data', (chunk: Buffer) => {
      askedBytes += chunk.length;
      lastAt = performance.now();
    });
    server.on('data', () => {
      askedBytes = 0;
      lastAt = performance.now();
    });
    const isUnderWay = (): boolean => {
      if (askedBytes > NOTE_BYTES_MAX) return true;
      return performance.now() - lastAt < (askedBytes > 0 ? NOTE_QUIET_MS : ANSWER_QUIET_MS);
    };
    const flight = { host, isUnderWay };
    this.#all.add(flight);
    return () => this.#all.delete(flight);
  }

  /**
   * Resolves when nothing to these hosts is under way.
   * @param patterns host names in lower case, with `*` for any run of characters
   * @throws the signal's reason
   */
  async drained(patterns: readonly string[], signal: AbortSignal): Promise<void> {
    const isAwaited = ({ host, isUnderWay }: Flight): boolean =>
      patterns.some((pattern) => matches(pattern, host)) && isUnderWay();
    while ([...this.#all].some(isAwaited)) await sleep(POLL_MS, undefined, { signal });
  }
}

/**
 * Whether a name fits a pattern. Not by a regular expression: of one with many `*`, each could
 * stand for almost any part of a long name, and guests choose both.
 */
function matches(pattern: string, name: string): boolean {
  const [first = '', ...others] = pattern.split('*');
  const last = others.pop();
  if (last === undefined) return name === pattern;
  if (!name.startsWith(first)) return false;
  let at = first.length;
  // The first place of a part leaves the most for those after it.
  for (const part of others) {
    const found = name.indexOf(part, at);
    if (found === -1) return false;
    at = found + part.length;
  }
  return name.length - last.length >= at && name.endsWith(last);
}
