import { Readable } from 'node:stream';
import { NodeHttpHandler } from '@smithy/node-http-handler';
import { MiB } from '../../../shared/units.ts';

/** A page of a listing has 1,000 keys of 1,024 bytes, each byte perhaps escaped by three. */
const ANSWER_BYTES_MAX = 4 * MiB;
const DOCUMENT_TYPE = /<!doctype/giu;

type Handle = NodeHttpHandler['handle'];

/**
 * Ends answers that are longer than any answer of a service, or that the SDK's parser could take
 * hours to read. The SDK collects answers whole and reads them in one turn of the event loop, and
 * whoever mounts a bucket chooses the server. The contents of objects are not collected and have no
 * bound here.
 */
export class BoundedAnswers extends NodeHttpHandler {
  override async handle(...[request, options]: Parameters<Handle>): ReturnType<Handle> {
    const handled = await super.handle(request, options);
    const { response } = handled;
    const isListing = request.query['list-type'] !== undefined;
    const isObject = request.method === 'GET' && !isListing && response.statusCode < 300;
    const body: unknown = response.body;
    if (!isObject && body instanceof Readable) response.body = Readable.from(checked(body));
    return handled;
  }
}

/** An answer that is not given to the parser; its name is shown to the disk's owner. */
class UnreadableAnswer extends Error {
  override readonly name = 'UnreadableAnswer';
}

async function* checked(body: Readable): AsyncGenerator<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of body as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > ANSWER_BYTES_MAX) throw new UnreadableAnswer('it is too long');
    chunks.push(chunk);
  }
  const answer = Buffer.concat(chunks);
  // A document has one type at most, and the parser copies all of the text for each.
  const types = answer.toString('latin1').match(DOCUMENT_TYPE)?.length ?? 0;
  if (types > 1) throw new UnreadableAnswer('it has several document types');
  if (bytes > 0) yield answer;
}
