import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';

const DISK = { id: 'dsk-0123456789abcdef', name: 'work' };

/**
 * The far side of the command line without a stack: one disk, `work`, whose objects are in memory. It knows
 * the calls that the client makes for files, and no directories but those above them.
 */
export class ServedObjects implements AsyncDisposable {
  readonly #objects = new Map<string, Buffer>();
  readonly #server = createServer((request, response) => {
    this.#serve(request, response).catch((error: unknown) => response.destroy(error as Error));
  });
  /** Keys whose writes and deletions are refused. */
  readonly refused = new Set<string>();
  /** Called when all of an object has come, before it is kept. */
  received: (key: string) => Promise<void> = async () => undefined;

  static async start(objects: Readonly<Record<string, string>> = {}): Promise<ServedObjects> {
    const served = new ServedObjects();
    for (const [key, content] of Object.entries(objects)) served.put(key, content);
    served.#server.listen(0, '127.0.0.1');
    await once(served.#server, 'listening');
    return served;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** The disk, as the API shows it. */
  get disk(): typeof DISK {
    return DISK;
  }

  get keys(): string[] {
    return [...this.#objects.keys()].sort();
  }

  put(key: string, content: string | Buffer): void {
    this.#objects.set(key, Buffer.from(content));
  }

  drop(key: string): void {
    this.#objects.delete(key);
  }

  /** The content as text; undefined when there is no such object. */
  text(key: string): string | undefined {
    return this.#objects.get(key)?.toString();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { method = '' } = request;
    const { pathname, searchParams } = new URL(request.url ?? '', this.url);
    if (pathname.startsWith('/api/')) {
      const data = pathname.endsWith(DISK.id) ? DISK : [DISK];
      response.end(JSON.stringify({ success: true, data }));
      return;
    }
    const key = decodeURIComponent(pathname.slice(DISK.id.length + 2));
    if (key === '') {
      response.end(this.#list(searchParams.get('prefix') ?? ''));
      return;
    }
    const content = await buffer(request);
    if (this.refused.has(key) && method !== 'HEAD' && method !== 'GET') {
      response.writeHead(403).end('<Error><Code>AccessDenied</Code><Message>no</Message></Error>');
    } else if (method === 'PUT') {
      await this.received(key);
      if (!key.endsWith('/')) this.put(key, content);
      response.end();
    } else if (method === 'DELETE') {
      this.#objects.delete(key);
      response.writeHead(204).end();
    } else this.#send(response, key);
  }

  #send(response: ServerResponse, key: string): void {
    const content = this.#objects.get(key);
    if (content === undefined) {
      response.writeHead(404).end('<Error><Code>NoSuchKey</Code><Message>none</Message></Error>');
    } else response.writeHead(200, { 'content-length': content.length }).end(content);
  }

  #list(prefix: string): string {
    const found = this.keys.filter((key) => key.startsWith(prefix));
    const entries = found.map((key) => {
      const content = this.#objects.get(key) ?? Buffer.of();
      const md5 = createHash('md5').update(content).digest('hex');
      return (
        `<Contents><Key>${encodeURIComponent(key)}</Key><Size>${content.length}</Size>` +
        `<LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>&quot;${md5}&quot;</ETag></Contents>`
      );
    });
    return `<ListBucketResult>${entries.join('')}</ListBucketResult>`;
  }
}
