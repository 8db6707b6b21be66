import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Server as TlsServer } from 'node:https';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Dispatcher } from 'undici';
import type { PortRoute } from '../../../shared/directory/sandbox-routes.ts';
import { toError } from '../../../shared/errors.ts';
import { isProxy } from '../../../shared/http/address-key.ts';
import { findFramingFault, framingOf } from '../../../shared/http/http-framing.ts';
import { type HttpMetrics, startHttpServer } from '../../../shared/http/http-server.ts';
import { plainAddress } from '../../../shared/http/ip-allowlist.ts';
import { EDGE_LIMITS } from '../limits.ts';
import { LIMITS } from '../../../shared/limits.ts';
import type { Logger } from '../../../shared/log.ts';
import type { Certificates } from '../../../shared/tls/certificates.ts';
import { answer, answerOf, ANSWERS, answerUpgrade, type OwnAnswer } from './answers.ts';
import { DoorError } from './door-error.ts';
import { exchange } from './exchange.ts';
import { clientFacts, type Peer, requestHeaders, TOKEN_HEADERS } from './forward-headers.ts';
import { parseIngressHost } from './ingress-host.ts';
import { judge } from './judge.ts';
import type { IngressWorkerData, PortRef } from './messages.ts';
import { upgrade } from './upgrade.ts';

export interface IngressServerParts {
  readonly settings: Pick<
    IngressWorkerData,
    'zone' | 'host' | 'port' | 'answerMs' | 'connections' | 'trustedProxies'
  >;
  readonly tls: Certificates | undefined;
  /** Finds what a request is judged by. @throws Error while the directory is away */
  readonly find: (
    routeId: string,
    port: number,
    token: string | undefined,
  ) => Promise<PortRoute | undefined>;
  /** @throws DoorError */
  readonly open: (ref: PortRef, mayWake: boolean) => Promise<Socket>;
  readonly upstream: (ref: PortRef) => Dispatcher;
  /** Told when a request waits for the guest's answer. */
  readonly waits: (ref: PortRef) => void;
  /** A request to the sandbox begins. @returns ends it */
  readonly use: (ref: PortRef) => () => void;
  /** Tells the directory whether a service publishes the port. */
  readonly noteService: (ref: PortRef, isThere: boolean) => Promise<void>;
  /** Told the status of each answer. */
  readonly answered: (status: number) => void;
  readonly metrics: HttpMetrics;
  readonly log: Logger;
}

const render = (_code: unknown, problem: string): { contentType: string; body: string } => ({
  contentType: 'text/plain; charset=utf-8',
  body: `${problem}\n`,
});

/** Permission to pass, with the port; or what the caller is told instead. */
type Admission = { readonly ref: PortRef; readonly route: PortRoute } | OwnAnswer;

function tokenOf({ headers }: IncomingMessage): string | undefined {
  for (const name of TOKEN_HEADERS) {
    const value = headers[name];
    if (typeof value === 'string') {
      return value.length <= EDGE_LIMITS.portTokenLengthMax ? value : undefined;
    }
  }
  return undefined;
}

/** The public server behind the hostnames of ports (docs/ingress.md). */
export class IngressServer {
  readonly #parts: IngressServerParts;
  /** Callers of WebSockets, each with its sandbox once that is connected to it. */
  readonly #upgraded = new Map<Duplex, string | undefined>();
  readonly #peers = new WeakMap<Socket, Peer>();

  private constructor(parts: IngressServerParts) {
    this.#parts = parts;
  }

  /**
   * @returns the server, and a function that breaks off the WebSockets to a sandbox, or all of
   *   them, which closing the server does not
   */
  static async start(
    parts: IngressServerParts,
  ): Promise<{ server: Server | TlsServer; endUpgraded: (sandboxId?: string) => void }> {
    const { settings, tls, metrics, log } = parts;
    const { host, port, connections } = settings;
    const ingress = new IngressServer(parts);
    const server = await startHttpServer(
      {
        ...{ name: 'ingress', host, port, connections, tls, render, metrics, log },
        ...{ isShared: true, hasUpgrades: true, anyMethodHasBody: true },
        headerBytesMax: LIMITS.headerBytesMax,
      },
      (request, response) => ingress.#handle(request, response),
    );
    server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
      // Node's server no longer listens on the socket: an unhandled reset would end this thread.
      socket.on('error', () => socket.destroy());
      ingress.#upgrade(request, socket, head).catch((error: unknown) => {
        log.error({ err: toError(error) }, 'ingress:upgradeFailed');
        socket.destroy();
      });
    });
    const endUpgraded = (ended?: string): void => {
      for (const [socket, sandboxId] of ingress.#upgraded) {
        if (ended === undefined || ended === sandboxId) socket.destroy();
      }
    };
    return { server, endUpgraded };
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { answered, use, upstream, waits, settings, noteService, log } = this.#parts;
    const admission = await this.#admit(request);
    if ('status' in admission) {
      answered(admission.status);
      if (!response.destroyed) answer(request, response, admission);
      return;
    }
    const { ref, route } = admission;
    const endUse = use(ref);
    try {
      const headers = this.#headersOf(request);
      const { zone, answerMs } = settings;
      const error = await exchange({
        ...{ request, response, headers, zone, answerMs },
        upstream: () => upstream(ref),
        waits: () => waits(ref),
      });
      if (error instanceof DoorError && error.fault === 'nothing_listens' && route.isServicePort) {
        await noteService(ref, false);
      }
      if (error !== undefined) {
        log.debug({ sandboxId: ref.sandboxId, port: ref.port, err: error }, 'ingress:notAnswered');
      }
    } finally {
      endUse();
      answered(response.statusCode);
    }
  }

  async #upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const { answered, use, open, settings } = this.#parts;
    const fault = upgradeFault(request);
    const admission: Admission =
      fault === undefined ? await this.#admit(request) : { status: 400, message: fault };
    if ('status' in admission) {
      answered(admission.status);
      return answerUpgrade(socket, admission);
    }
    const { ref } = admission;
    const endUse = use(ref);
    this.#upgraded.set(socket, undefined);
    const openFor = async (): Promise<Socket> => {
      const upstream = await open(ref, true);
      this.#upgraded.set(socket, ref.sandboxId);
      return upstream;
    };
    try {
      answered(101);
      const headers = this.#headersOf(request);
      const { zone, answerMs } = settings;
      await upgrade({ request, socket, head, headers, zone, open: openFor, answerMs });
    } finally {
      this.#upgraded.delete(socket);
      endUse();
    }
  }

  async #admit(request: IncomingMessage): Promise<Admission> {
    const { url = '', headers } = request;
    if (!url.startsWith('/') && url !== '*') return ANSWERS.badTarget;
    const host = parseIngressHost(headers.host ?? '', this.#parts.settings.zone);
    if (host === undefined) return ANSWERS.unknownHost;
    let route: PortRoute | undefined;
    try {
      route = await this.#parts.find(host.routeId, host.port, tokenOf(request));
    } catch (error) {
      this.#parts.log.warn({ err: toError(error) }, 'ingress:directoryAway');
      return ANSWERS.directoryAway;
    }
    const verdict = judge(route, host.port);
    if (verdict === 'refuse' || route === undefined) return ANSWERS.unauthorized;
    const { accountId, sandboxId, hostId } = route;
    const ref = { accountId, sandboxId, hostId, port: host.port };
    const fault = verdict === 'ask' ? await this.#askForService(ref) : undefined;
    return fault ?? { ref, route };
  }

  /** Whether a service publishes the port now: something listens there, in a sandbox that runs. */
  async #askForService(ref: PortRef): Promise<OwnAnswer | undefined> {
    const { open, noteService } = this.#parts;
    try {
      (await open(ref, false)).destroy();
    } catch (error) {
      if (!(error instanceof DoorError)) throw error;
      const { fault } = error;
      return fault === 'unavailable' ? answerOf(fault) : ANSWERS.unauthorized;
    }
    await noteService(ref, true);
    return undefined;
  }

  #headersOf(request: IncomingMessage): string[] {
    return requestHeaders(request, clientFacts(request, this.#peerOf(request.socket)));
  }

  /** The peer of a connection; found out once for each. */
  #peerOf(socket: Socket): Peer {
    let peer = this.#peers.get(socket);
    if (peer === undefined) {
      const address = plainAddress(socket.remoteAddress ?? '0.0.0.0');
      const { trustedProxies } = this.#parts.settings;
      const isSecure = this.#parts.tls !== undefined;
      peer = { address, isTrusted: isProxy(trustedProxies, address), isSecure };
      this.#peers.set(socket, peer);
    }
    return peer;
  }
}

function upgradeFault(request: IncomingMessage): string | undefined {
  const fault = findFramingFault(request, { mayUpgrade: true });
  if (fault !== undefined) return fault;
  if (request.headers.upgrade?.toLowerCase() !== 'websocket') return 'only WebSockets are upgraded';
  if (request.method !== 'GET' || framingOf(request) !== 'none') {
    return 'a WebSocket is asked for by GET without a body';
  }
  return undefined;
}
