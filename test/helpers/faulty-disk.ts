import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { Berth } from '../../clients/sdk/src/index.ts';
import type { ApiClient } from './api.ts';
import { createDisk } from './disks.ts';

/** Headers that say how one connection carries a message; they do not pass on to the next. */
const OF_CONNECTION = new Set(['connection', 'content-length', 'keep-alive', 'transfer-encoding']);

const passOn = (headers: Headers): [string, string][] =>
  [...headers].filter(([name]) => !OF_CONNECTION.has(name));

/** A disk behind a proxy that refuses or breaks off some of what it passes on. */
export class FaultyDisk implements AsyncDisposable {
  readonly #api: ApiClient;
  readonly #disk: Awaited<ReturnType<typeof createDisk>>;
  readonly #server = createServer((request, response) => {
    this.#serve(request, response).catch(() => response.destroy());
  });
  /** Keys whose writes and deletions are refused. */
  readonly refused = new Set<string>();
  /** Called when all of an object has come, before it is passed on; throws to break off. */
  received: (key: string) => Promise<void> = async () => undefined;

  private constructor(api: ApiClient, disk: Awaited<ReturnType<typeof createDisk>>) {
    this.#api = api;
    this.#disk = disk;
  }

  /** @param objects what the disk has, by key */
  static async start(
    api: ApiClient,
    objects: Readonly<Record<string, string>> = {},
  ): Promise<FaultyDisk> {
    const disk = new FaultyDisk(api, await createDisk(api));
    disk.#server.listen(0, '127.0.0.1');
    await once(disk.#server, 'listening');
    const { files } = await disk.open();
    for (const [key, content] of Object.entries(objects)) await files.write(key, content);
    return disk;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  get name(): string {
    return this.#disk.name;
  }

  /** The disk as a client behind the proxy has it. */
  async open() {
    const berth = new Berth({ baseUrl: this.url, apiKey: this.#api.key });
    return berth.disks.get(this.#disk.id);
  }

  /** Keys of the objects that are there. */
  async keys(): Promise<string[]> {
    const { files } = await this.open();
    const found: string[] = [];
    for await (const { type, path } of files.list('', { recursive: true })) {
      if (type === 'file') found.push(path);
    }
    return found.sort();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { method = '', url = '' } = request;
    const body = await buffer(request);
    const { pathname } = new URL(url, this.url);
    const key = decodeURIComponent(pathname.slice(`/${this.#disk.id}/`.length));
    const isChange = method === 'PUT' || method === 'DELETE';
    if (isChange && this.refused.has(key)) {
      response.writeHead(403).end('<Error><Code>AccessDenied</Code><Message>no</Message></Error>');
      return;
    }
    if (method === 'PUT') await this.received(key);
    const answer = await fetch(new URL(url, this.#api.baseUrl), {
      method,
      headers: passOn(new Headers(request.headers as Record<string, string>)),
      ...(body.length === 0 ? {} : { body }),
    });
    response.writeHead(answer.status, passOn(answer.headers).flat());
    response.end(Buffer.from(await answer.arrayBuffer()));
  }
}
