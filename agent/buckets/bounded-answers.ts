import { Readable } from 'node:stream';
import { NodeHttpHandler } from '@smithy/node-http-handler';
import { MiB } from '../../shared/units.ts';

/** A page of a listing has 1,000 keys of 1,024 bytes, each byte perhaps escaped. */
const ANSWER_BYTES_MAX = 16 * MiB;

type Handle = NodeHttpHandler['handle'];

/**
 * Ends answers that are longer than any answer of a service. The SDK collects them whole, and whoever
 * mounts a bucket chooses the server. The contents of objects are not collected and have no bound here.
 */
export class BoundedAnswers extends NodeHttpHandler {
  override async handle(...[request, options]: Parameters<Handle>): ReturnType<Handle> {
    const handled = await super.handle(request, options);
    const { response } = handled;
    const isListing = request.query['list-type'] !== undefined;
    const isObject = request.method === 'GET' && !isListing && response.statusCode < 300;
    const body: unknown = response.body;
    if (!isObject && body instanceof Readable) response.body = Readable.from(bounded(body));
    return handled;
  }
}

async function* bounded(body: Readable): AsyncGenerator<Buffer> {
  let bytes = 0;
  for await (const chunk of body as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > ANSWER_BYTES_MAX) throw new Error('the answer of the storage is too long');
    yield chunk;
  }
}
