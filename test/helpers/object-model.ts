import { createHash } from 'node:crypto';
import { crc32 } from 'node:zlib';
import type { ObjectClient, ObjectReply } from './objects.ts';
import { escapeKey, textsOf } from './objects.ts';

/** The expected state of an object; undefined: there is none. */
export type Expected =
  | {
      readonly content: string;
      /** Without quotes; undefined when a command wrote the file, so that it ends in `-0`. */
      readonly etag: string | undefined;
      /** The value of `x-amz-meta-color`. */
      readonly color?: string | undefined;
      /** CRC32 in base64, and the number of parts of a composite one. */
      readonly checksum?: string | undefined;
    }
  | undefined;

export const md5Of = (content: string | Buffer): string =>
  createHash('md5').update(content).digest('hex');

export function crcOf(content: string | Buffer): string {
  const value = Buffer.alloc(4);
  value.writeUInt32BE(crc32(content));
  return value.toString('base64');
}

const ENABLED = { 'x-amz-checksum-mode': 'ENABLED' };

/** The current state, in the words of the model; `wrong` says what cannot be at all. */
function describe(reply: ObjectReply): { readonly found: Expected; readonly etag: string } {
  const etag = (reply.headers.get('etag') ?? '').replaceAll('"', '');
  if (reply.status === 404) return { found: undefined, etag };
  const found = {
    content: reply.text,
    etag: etag.endsWith('-0') ? undefined : etag,
    color: reply.headers.get('x-amz-meta-color') ?? undefined,
    checksum: reply.headers.get('x-amz-checksum-crc32') ?? undefined,
  };
  return { found, etag };
}

const show = (expected: Expected): string =>
  expected === undefined
    ? 'absent'
    : JSON.stringify([
        expected.content.length > 60 ? md5Of(expected.content) : expected.content,
        ...[expected.etag ?? '-0', expected.color ?? '', expected.checksum ?? ''],
      ]);

/** A disagreement between an object and the model. */
export class Disagreement extends Error {}

/**
 * A key that one client alone changes. After a request whose outcome is unknown, both what was
 * there and what it would have made are possible, until a read tells.
 */
export class ModelObject {
  readonly key: string;
  /** In the order in which they can have come to be. */
  #possible: readonly Expected[] = [undefined];

  constructor(key: string) {
    this.key = key;
  }

  /** @throws Error while the state is not known; read it first */
  get expected(): Expected {
    if (this.#possible.length > 1) throw new Error(`${this.key} was not read since a failure`);
    return this.#possible[0];
  }

  get isKnown(): boolean {
    return this.#possible.length === 1;
  }

  becomes(expected: Expected): void {
    this.#possible = [expected];
  }

  /** A request that would have made it this failed, or may have. */
  mayBecome(expected: Expected): void {
    this.#possible = [...this.#possible, expected];
  }

  /** Reads the object and compares it with the model. @returns its ETag */
  async check(client: ObjectClient, disk: string): Promise<string> {
    const reply = await client.get(disk, this.key, ENABLED);
    if (reply.status !== 200 && reply.status !== 404) throw new Error(`GET: ${reply.status}`);
    const { found, etag } = describe(reply);
    const index = this.#possible.findIndex((each) => show(each) === show(found));
    if (index === -1) {
      const wanted = this.#possible.map(show).join(' or ');
      throw new Disagreement(`${this.key} is ${show(found)} and should be ${wanted}`);
    }
    this.#possible = [this.#possible[index]];
    return etag;
  }
}

/** Compares a listing with the model. @param objects all objects below the prefix, all known */
export async function checkListing(
  client: ObjectClient,
  disk: string,
  prefix: string,
  objects: readonly ModelObject[],
): Promise<void> {
  const reply = await client.call('GET', `/${disk}?list-type=2&prefix=${escapeKey(prefix)}`);
  if (reply.status !== 200) throw new Error(`listing: ${reply.status}`);
  const [keys, sizes, etags] = ['Key', 'Size', 'ETag'].map((name) => textsOf(reply.text, name));
  const listed = keys?.map((key, index) => [key, sizes?.[index], etags?.[index]]);
  const wanted = objects
    .flatMap(({ key, expected }) => (expected === undefined ? [] : [{ key, ...expected }]))
    .toSorted((a, b) => Buffer.compare(Buffer.from(a.key), Buffer.from(b.key)))
    .map(({ key, content, etag }, index) => [
      key,
      String(Buffer.byteLength(content)),
      etag === undefined ? etags?.[index] : `"${etag}"`,
    ]);
  if (JSON.stringify(listed) === JSON.stringify(wanted)) return;
  throw new Disagreement(`listed ${JSON.stringify(listed)} and not ${JSON.stringify(wanted)}`);
}
