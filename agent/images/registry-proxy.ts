import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { connect, createServer as createTcpServer, type Server, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { runInBackground } from '../../shared/background.ts';
import { awaitAnswer, beginRequest } from '../../shared/http/send-request.ts';
import { STRICT_HTTP } from '../../shared/http/strict-http.ts';
import { ClosedAddressError, type KnownRegistry, type RegistryRules } from './registry-rules.ts';

const CONNECTIONS_MAX = 64;
const IDLE_MS_MAX = 60_000;
const HTTP_PORT = 80;
const HTTPS_PORT = 443;
const PORT_MAX = 65_535;

/** Bytes and refusals of a build's connections. */
export class Traffic {
  readonly #onBytes: (bytes: number) => void;
  /** Why a connection was refused, for the message; the client knows only that it was. */
  refused: ClosedAddressError | undefined;

  /** @param onBytes called with the number of bytes of each piece that comes from a server */
  constructor(onBytes: (bytes: number) => void) {
    this.#onBytes = onBytes;
  }

  count(from: NodeJS.ReadableStream): void {
    from.on('data', (chunk: Buffer) => this.#onBytes(chunk.length));
  }

  note(error: unknown): void {
    if (error instanceof ClosedAddressError) this.refused ??= error;
  }
}

function splitTarget(target: string, fallback: number): { host: string; port: number } {
  const [, host = '', port = String(fallback)] =
    /^([A-Za-z0-9.-]+)(?::(\d{1,5}))?$/u.exec(target) ?? [];
  if (host === '' || Number(port) < 1 || Number(port) > PORT_MAX) {
    throw new ClosedAddressError(`${target.slice(0, 100)} is no address that builds may reach`);
  }
  return { host: host.toLowerCase(), port: Number(port) };
}

function dial(host: string, port: number): Socket {
  const socket = connect({ host, port, family: 4, noDelay: true, allowHalfOpen: true });
  socket.setTimeout(IDLE_MS_MAX, () => socket.destroy(new Error('the server went silent')));
  return socket;
}

/** Passes bytes both ways until both sides have ended. */
async function join(client: Duplex, server: Socket, traffic: Traffic): Promise<void> {
  traffic.count(server);
  try {
    await Promise.all([pipeline(client, server), pipeline(server, client)]);
  } catch {
    // A side broke off: the other one learns of it by the end of its connection.
  } finally {
    client.destroy();
    server.destroy();
  }
}

/** The way out of a build's network namespace: an HTTP proxy that knows what is closed. */
export function registryProxy(rules: RegistryRules, traffic: Traffic): Server {
  const server = createServer(STRICT_HTTP, (incoming, outgoing) => {
    runInBackground('image.forward', () => forward(rules, traffic, incoming, outgoing));
  });
  server.maxConnections = CONNECTIONS_MAX;
  server.on('connect', (incoming: IncomingMessage, client: Duplex) => {
    client.on('error', () => undefined);
    runInBackground('image.tunnel', () => tunnel(rules, traffic, incoming, client));
  });
  return server;
}

async function tunnel(
  rules: RegistryRules,
  traffic: Traffic,
  { url = '' }: IncomingMessage,
  client: Duplex,
): Promise<void> {
  try {
    const { host, port } = splitTarget(url, HTTPS_PORT);
    const server = dial(await rules.resolve(host, port), port);
    server.once('connect', () => client.write('HTTP/1.1 200 OK\r\n\r\n'));
    server.once('error', () => client.destroy());
    await join(client, server, traffic);
  } catch (error) {
    traffic.note(error);
    client.end('HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n');
  }
}

/** Plain HTTP: to registries that the operator has named as such, and to nothing else. */
async function forward(
  rules: RegistryRules,
  traffic: Traffic,
  incoming: IncomingMessage,
  outgoing: ServerResponse,
): Promise<void> {
  try {
    const url = new URL(incoming.url ?? '');
    const { host, port } = splitTarget(url.host, HTTP_PORT);
    if (url.protocol !== 'http:' || !rules.isPlainAt(host, port)) {
      throw new ClosedAddressError(`${host} is spoken to with TLS only`);
    }
    const address = await rules.resolve(host, port);
    const { 'proxy-connection': _hop, ...headers } = incoming.headers;
    const { method } = incoming;
    const path = `${url.pathname}${url.search}`;
    const wanted = { host: address, port, method, path, headers, timeout: IDLE_MS_MAX };
    const upstream = beginRequest(false, wanted);
    upstream.once('timeout', () => upstream.destroy());
    incoming.pipe(upstream);
    const answer = await awaitAnswer(upstream);
    traffic.count(answer);
    outgoing.writeHead(answer.statusCode ?? 502, answer.headers);
    await pipeline(answer, outgoing);
  } catch (error) {
    traffic.note(error);
    if (!outgoing.headersSent) outgoing.writeHead(error instanceof ClosedAddressError ? 403 : 502);
    outgoing.end();
  }
}

/** Stands for a registry on the host's loopback, since clients ask no proxy for such addresses. */
export function loopbackForwarder({ host, port }: KnownRegistry, traffic: Traffic): Server {
  const server = createTcpServer({ allowHalfOpen: true, noDelay: true }, (client) => {
    client.on('error', () => undefined);
    runInBackground('image.forward', () => join(client, dial(host, port), traffic));
  });
  server.maxConnections = CONNECTIONS_MAX;
  return server;
}
