import {
  type IncomingMessage,
  type OutgoingHttpHeader,
  type OutgoingHttpHeaders,
  ServerResponse,
} from 'node:http';

type Headers = OutgoingHttpHeaders | OutgoingHttpHeader[];
type Pair = [name: string, value: OutgoingHttpHeader | undefined];

const NOT_ASCII = /[^\0-\u007f]/u;

const isNamed = (name: string, wanted: string): boolean => name.toLowerCase() === wanted;

function pairsOf(headers: Headers | undefined): Pair[] {
  if (!Array.isArray(headers)) return Object.entries(headers ?? {});
  const pairs: Pair[] = [];
  for (let at = 0; at + 1 < headers.length; at += 2) {
    pairs.push([String(headers[at]), headers[at + 1]]);
  }
  return pairs;
}

/**
 * A response whose header values, one character a byte, leave as exactly these bytes. All servers
 * make their responses with it, because Node 24 changes bytes above 127 in two cases:
 *
 * - `Content-Disposition` is decoded as UTF-8 and cut to the low byte of each character once the
 *   length of the body is known. `č` becomes a carriage return then, so that whoever chooses the
 *   value writes headers and whole responses. The length therefore comes last.
 * - A head that leaves with a body of text, or by `flushHeaders`, is encoded as UTF-8. Such a head
 *   is therefore sent on its own.
 */
export class ExactResponse<
  Request extends IncomingMessage = IncomingMessage,
> extends ServerResponse<Request> {
  #isExact = false;

  override writeHead(status: number, reason?: string | Headers, headers?: Headers): this {
    const [phrase, given] = typeof reason === 'string' ? [reason, headers] : [undefined, reason];
    const exact = this.headersSent ? given : this.#withLengthLast(given);
    if (phrase === undefined) super.writeHead(status, exact);
    else super.writeHead(status, phrase, exact);
    this.#isExact = NOT_ASCII.test(String(Reflect.get(this, '_header')));
    // An answer without a body leaves with `end`, which keeps its bytes.
    if (this.#isExact) super.write('', 'latin1');
    return this;
  }

  override flushHeaders(): void {
    if (!this.headersSent) this.writeHead(this.statusCode);
    if (!this.#isExact) super.flushHeaders();
  }

  /** The headers to write a head with, so that Node learns the length after all others. */
  #withLengthLast(given: Headers | undefined): Headers | undefined {
    const pairs = pairsOf(given);
    const has = (wanted: string): boolean =>
      this.hasHeader(wanted) || pairs.some(([name]) => isNamed(name, wanted));
    if (!has('content-disposition')) return given;
    // Set by an `end` that writes the head, too.
    const found = Reflect.get(this, '_contentLength') as number | null;
    Reflect.set(this, '_contentLength', null);
    const implied = has('transfer-encoding') ? undefined : (found ?? undefined);
    const [, length = this.getHeader('content-length') ?? implied] =
      pairs.find(([name]) => isNamed(name, 'content-length')) ?? [];
    if (this.hasHeader('content-length')) this.removeHeader('content-length');
    const others = pairs.filter(([name]) => !isNamed(name, 'content-length'));
    const all: Pair[] = length === undefined ? others : [...others, ['Content-Length', length]];
    return all.flatMap(([name, value]) => (value === undefined ? [] : [name, value as string]));
  }
}
