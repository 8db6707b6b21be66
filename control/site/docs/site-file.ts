import { promisify } from 'node:util';
import { brotliCompress, constants, gzip } from 'node:zlib';
import { sha256 } from '../../../shared/secrets.ts';
import type { SiteContent } from './site.ts';

const HASH_LENGTH = 16;
const BROTLI_QUALITY = 9; // Each file is compressed once in the life of a control node.

const compress = {
  br: (body: Buffer) =>
    promisify(brotliCompress)(body, {
      params: { [constants.BROTLI_PARAM_QUALITY]: BROTLI_QUALITY },
    }),
  gzip: promisify(gzip) as (body: Buffer) => Promise<Buffer>,
};
export type ContentCoding = keyof typeof compress;

/** A file of the site, with the forms in which it is sent. */
export class SiteFile {
  readonly type: string;
  readonly hash: string;
  readonly #body: Buffer;
  readonly #forms = new Map<ContentCoding, Promise<Buffer>>();

  constructor({ type, content }: SiteContent) {
    this.type = type;
    this.#body = Buffer.from(content);
    this.hash = sha256(content).slice(0, HASH_LENGTH);
  }

  body(coding: ContentCoding | undefined): Promise<Buffer> {
    if (coding === undefined) return Promise.resolve(this.#body);
    const made = this.#forms.get(coding) ?? compress[coding](this.#body);
    this.#forms.set(coding, made);
    return made;
  }
}
