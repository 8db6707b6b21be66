import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import {
  createServer as createHttpServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
} from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import {
  type AddressInfo,
  connect,
  createServer,
  type Server as NetServer,
  type Socket,
} from 'node:net';
import type { Duplex } from 'node:stream';
import { connect as connectTls, createSecureContext, type TLSSocket } from 'node:tls';
import { AddressGuard } from '../../agent/network/egress/address-guard.ts';
import { authorityOf } from '../../agent/network/egress/authority.ts';
import { EgressServer } from '../../agent/network/egress/egress-server.ts';
import type { AuthorityKeys } from '../../agent/network/egress/egress-settings.ts';
import { LeafCertificates } from '../../agent/network/egress/leaf-certificates.ts';
import { Resolver } from '../../agent/network/egress/resolver.ts';
import { toEgressRules } from '../../shared/network/egress-rules.ts';
import { parseNetworkPolicy } from '../../shared/network/parse-policy.ts';
import type { EgressPolicy } from '../../shared/schemas/network-policy.ts';
import { freePorts } from './ports.ts';
import { waitFor } from './wait.ts';

const SLOT = '127.0.0.1';

/** A name that resolves, and what answers there. */
interface Site {
  readonly address: string;
  readonly port: number;
}

/**
 * An egress proxy within the test's process, with real servers and a real resolver on loopback
 * addresses. Only where a connection was to go is told otherwise than by the kernel.
 */
export class EgressLab implements AsyncDisposable {
  readonly proxy: EgressServer;
  /** The authority of the sandbox. */
  readonly authority: AuthorityKeys;
  readonly #outside: AuthorityKeys;
  readonly #dns: ChildProcess;
  readonly #servers = new Set<Server | NetServer>();
  readonly #sockets = new Set<Socket>();

  private constructor(
    proxy: EgressServer,
    keys: { readonly authority: AuthorityKeys; readonly outside: AuthorityKeys },
    dns: ChildProcess,
  ) {
    this.proxy = proxy;
    this.authority = keys.authority;
    this.#outside = keys.outside;
    this.#dns = dns;
  }

  /** @param names domain names and their addresses, in 127.0.0.0/8 */
  static async open(
    names: Readonly<Record<string, string | readonly string[]>>,
    { closed = [] }: { closed?: readonly string[] } = {},
  ): Promise<EgressLab> {
    const [port = 0] = await freePorts(1);
    const records = Object.entries(names).flatMap(([name, addresses]) =>
      [addresses].flat().map((address) => `--host-record=${name},${address}`),
    );
    const options = ['--conf-file=/dev/null', '--no-resolv', '--no-hosts', '--keep-in-foreground'];
    const bound = ['--bind-interfaces', '--listen-address=127.0.0.1', `--port=${port}`];
    const args = [...options, ...bound, '--pid-file', '--user=root', '--local=/test/', ...records];
    const dns = spawn('/usr/sbin/dnsmasq', args, { stdio: 'ignore' });
    const resolver = new Resolver(`127.0.0.1:${port}`);
    const [first = ''] = Object.keys(names);
    await waitFor('the resolver', async () =>
      new Resolver(`127.0.0.1:${port}`).resolve(first).then(
        (found) => found.length > 0,
        () => false,
      ),
    );
    const outside = await authorityOf(randomBytes(32), 'outside');
    const authority = await authorityOf(randomBytes(32), 'sandbox');
    const trust = createSecureContext({ ca: outside.certificate });
    const guard = new AddressGuard({ closed, private: [], opened: [] });
    const proxy = new EgressServer({ guard, resolver, trust });
    return new EgressLab(proxy, { authority, outside }, dns);
  }

  setPolicy(egress: EgressPolicy): void {
    const rules = toEgressRules(parseNetworkPolicy({ egress }));
    this.proxy.setSlot(SLOT, { asksFrom: SLOT, rules, authority: this.authority });
  }

  get slot() {
    const slot = this.proxy.slot(SLOT);
    if (slot === undefined) throw new Error('set a policy first');
    return slot;
  }

  /** Has names resolve only once the returned function is called. */
  holdNames(): () => void {
    this.#dns.kill('SIGSTOP');
    return () => this.#dns.kill('SIGCONT');
  }

  /** Starts an HTTP server on this address. */
  serveHttp(address: string, listener: RequestListener, port = 0): Promise<Site> {
    return this.#listen(createHttpServer(listener), address, port);
  }

  /** Starts an HTTPS server with a certificate of the outside's authority, or of another one. */
  async serveHttps(
    address: string,
    name: string,
    listener: RequestListener,
    { port = 0, authority = this.#outside } = {},
  ): Promise<Site> {
    const context = await new LeafCertificates(authority).contextFor(name);
    const SNICallback = (_name: string, done: (error: null, found: typeof context) => void): void =>
      done(null, context);
    return this.#listen(createHttpsServer({ SNICallback }, listener), address, port);
  }

  /** Has a site serve upgrades of the protocol. */
  onUpgrade(site: Site, handle: (request: IncomingMessage, socket: Duplex, head: Buffer) => void) {
    for (const server of this.#servers) {
      const bound = server.address();
      const isSite = typeof bound === 'object' && bound?.port === site.port;
      if (isSite && bound.address === site.address) server.on('upgrade', handle);
    }
  }

  /** Starts a TCP server that handles connections so. */
  serve(address: string, handle: (socket: Socket) => void, port = 0): Promise<Site> {
    return this.#listen(createServer({ allowHalfOpen: true }, handle), address, port);
  }

  /** Connects as the guest does, to an address that may have no server. */
  async connect({ address, port }: Site): Promise<Socket> {
    const redirected = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
      Object.defineProperty(socket, 'localAddress', { value: address });
      Object.defineProperty(socket, 'localPort', { value: port });
      this.proxy.accept(socket);
    });
    const { port: at } = await this.#listen(redirected, '127.0.0.1');
    const socket = connect({ host: '127.0.0.1', port: at, allowHalfOpen: true });
    this.#sockets.add(socket);
    socket.on('error', () => undefined);
    await once(socket, 'connect').catch(() => undefined); // The connection may be refused at once.
    return socket;
  }

  /** A TLS connection of the guest, which trusts its sandbox's authority and the outside's. */
  async connectTls(
    site: Site,
    servername: string,
    options: { ALPNProtocols?: string[]; ca?: readonly string[] } = {},
  ): Promise<TLSSocket> {
    const socket = await this.connect(site);
    const ca = [...(options.ca ?? [this.authority.certificate, this.#outside.certificate])];
    const secured = connectTls({ socket, servername, ...options, ca });
    secured.on('error', () => undefined);
    await once(secured, 'secureConnect');
    return secured;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.proxy.removeSlot(SLOT);
    for (const socket of this.#sockets) socket.destroy();
    for (const server of this.#servers) {
      server.close();
      if ('closeAllConnections' in server) server.closeAllConnections();
    }
    const exited = once(this.#dns, 'exit');
    this.#dns.kill('SIGKILL');
    await exited;
  }

  async #listen(server: Server | NetServer, address: string, port = 0): Promise<Site> {
    this.#servers.add(server);
    server.listen(port, address);
    await once(server, 'listening');
    return { address, port: (server.address() as AddressInfo).port };
  }
}

/** Reads until the connection ends or is reset. */
export async function readAll(socket: Socket): Promise<Buffer> {
  const chunks: Buffer[] = [];
  socket.on('data', (chunk: Buffer) => chunks.push(chunk));
  if (!socket.readableEnded && !socket.destroyed) {
    await Promise.race([
      once(socket, 'end').catch(() => undefined),
      once(socket, 'close').catch(() => undefined),
    ]);
  }
  return Buffer.concat(chunks);
}
