import type { IncomingMessage, Server } from 'node:http';
import type { Duplex } from 'node:stream';
import { WebSocket, WebSocketServer } from 'ws';
import { repeatInBackground, runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import { findFramingFault } from '../../shared/http/http-framing.ts';
import type { Hosts } from '../../shared/directory/hosts.ts';
import { LIMITS } from '../../shared/limits.ts';
import { REGION_LIMITS } from './limits.ts';
import type { Logger } from '../../shared/log.ts';
import { signConnectionKeys } from '../../shared/links/connection-keys.ts';
import { assertCompatible, OWN_VERSIONS } from '../../shared/links/protocol-versions.ts';
import { SingleUseTokens } from '../../shared/links/single-use-token.ts';
import type { SandboxImage } from '../../shared/schemas/sandbox-image.ts';
import {
  type ControlFrame,
  decodeAgentFrame,
  encodeFrame,
  type HostLoad,
} from '../../shared/links/stream-protocol.ts';
import { DrawableMap } from './drawable-map.ts';
import { JobWaiters } from './job-waiters.ts';
import type { Host, KnownHosts } from './known-hosts.ts';
import { RecentPlacements } from './recent-placements.ts';
import type { Ring } from '../../shared/secrets.ts';

interface AgentLink {
  readonly socket: WebSocket;
  readonly publicUrl: string;
  readonly internalUrl: string;
  readonly image: SandboxImage | undefined;
  load: HostLoad;
  /** When it last sent something, the answer to a ping included; by `performance.now()`. */
  heardAt: number;
  /** Whether the host is linked only because this node has asked it. */
  isSpare: boolean;
  /** When it was last looked up, by `performance.now()`. */
  usedAt: number;
}

export interface AgentHubOptions {
  readonly nodeId: string;
  readonly clusterId: string;
  readonly clusterSecrets: Ring<string>;
  readonly region: string;
  /** Whether internal ports speak TLS, this node's and those of its hosts. */
  readonly isEncrypted: boolean;
  /** The node's public connection keys, which every agent is told. */
  readonly connectionKeys: readonly string[];
  /** Which hosts an operator has removed: those get no link. */
  readonly hosts: Pick<Hosts, 'isRemoved' | 'removed'>;
  readonly log: Logger;
}

export const LINK_PATH = '/agent-link';

/** This node's end of the agents' WebSockets: who is there, and who waits for which answer. */
export class AgentHub implements KnownHosts {
  /** Callers on this node that wait for a host's answer. */
  readonly waiters = new JobWaiters();
  /** Where this node has placed sandboxes lately. */
  readonly placements = new RecentPlacements();
  readonly #options: AgentHubOptions;
  readonly #links = new DrawableMap<string, AgentLink>();
  #images: readonly Host['image'][] | undefined;
  readonly #tokens: SingleUseTokens;
  readonly #server = new WebSocketServer({
    noServer: true,
    perMessageDeflate: false,
    maxPayload: LIMITS.linkFrameBytesMax,
  });
  readonly #timer: NodeJS.Timeout;
  readonly #stopDropping: () => void;

  constructor(options: AgentHubOptions) {
    this.#options = options;
    this.#tokens = new SingleUseTokens(options.clusterSecrets);
    this.#timer = setInterval(() => this.#beat(), LIMITS.linkHeartbeatMs);
    this.#stopDropping = repeatInBackground('host.dropRemoved', LIMITS.linkHeartbeatMs, () =>
      this.#dropRemoved(),
    );
  }

  /** Accepts agents on the internal server. */
  serve(server: Server): void {
    server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
      // Node's server no longer listens on the socket: an unhandled reset would end this process.
      socket.on('error', () => socket.destroy());
      runInBackground('link.admit', () => this.#admit(request, socket, head));
    });
  }

  /** Ends the link of a host that was removed. */
  drop(hostId: string): void {
    this.#links.get(hostId)?.socket.terminate();
  }

  get linkedCount(): number {
    return this.#links.size;
  }

  /** How many of the linked hosts take no new work. */
  get drainingCount(): number {
    return this.#links
      .entries()
      .filter(([, { load }]) => load.draining)
      .toArray().length;
  }

  /** Where the linked hosts are reached by callers. */
  get publicUrls(): string[] {
    return this.#links
      .entries()
      .map(([, { publicUrl }]) => publicUrl)
      .toArray();
  }

  /** The images of the linked hosts, each once. */
  get images(): readonly Host['image'][] {
    this.#images ??= distinctImages(this.#links.entries().map(([, { image }]) => image));
    return this.#images;
  }

  find(hostId: string): Host | undefined {
    const link = this.#links.get(hostId);
    if (link === undefined) return undefined;
    link.usedAt = performance.now();
    return this.#hostOf(hostId, link);
  }

  /**
   * The linked hosts, each once; take what is needed at once. See {@link KnownHosts}. Those that
   * this node has asked for a link are left out: the link may end soon.
   */
  inRandomOrder(): IteratorObject<Host, undefined> {
    return this.#links
      .drawn()
      .filter(([, { isSpare }]) => !isSpare)
      .map(([hostId, link]) => this.#hostOf(hostId, link));
  }

  /** Tells the host that nobody waits for the job any more. */
  cancel(jobId: string, hostId: string): void {
    this.#send(hostId, { type: 'cancel', jobId });
  }

  close(): void {
    clearInterval(this.#timer);
    this.#stopDropping();
    for (const [, { socket }] of this.#links.entries()) socket.close(1001, 'control node stops');
    this.#server.close();
  }

  /** Hosts may have been removed by way of another node. */
  async #dropRemoved(): Promise<void> {
    for (const hostId of await this.#options.hosts.removed()) this.drop(hostId);
  }

  async #admit(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const hostId = this.#authenticate(request);
    if (hostId === undefined || (await this.#isRemoved(hostId))) {
      const answer = 'HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\r\n';
      socket.end(answer, () => socket.destroy());
      return;
    }
    this.#server.handleUpgrade(request, socket, head, (webSocket) => {
      this.#welcome(hostId, webSocket);
    });
  }

  /** While Redis is away nobody is known to be removed; the link ends when it is back. */
  async #isRemoved(hostId: string): Promise<boolean> {
    const { hosts, log } = this.#options;
    const found = await hosts.isRemoved(hostId).catch(() => false);
    if (found) log.warn({ hostId, reason: 'removed' }, 'link:refused');
    return found;
  }

  #authenticate(request: IncomingMessage): string | undefined {
    const { clusterId, nodeId, log } = this.#options;
    if (request.url !== LINK_PATH) return undefined;
    if (findFramingFault(request, { mayUpgrade: true }) !== undefined) return undefined;
    const token = (request.headers.authorization ?? '').replace(/^Bearer /u, '');
    const claims = this.#tokens.read('agent-link', token);
    if (typeof claims === 'string') {
      log.warn({ reason: claims }, 'link:refused');
      return undefined;
    }
    if (claims['clusterId'] !== clusterId) return undefined;
    return claims['nodeId'] === nodeId ? String(claims['hostId']) : undefined;
  }

  #welcome(hostId: string, socket: WebSocket): void {
    const deadline = setTimeout(() => socket.close(1008, 'no registration'), 5_000);
    socket.once('message', (data: Buffer) => {
      clearTimeout(deadline);
      this.#handle(socket, () => this.#register(hostId, socket, data));
    });
    socket.on('error', (error) => this.#options.log.warn({ hostId, err: error }, 'link:failed'));
    socket.on('close', () => clearTimeout(deadline));
  }

  #register(hostId: string, socket: WebSocket, data: Buffer): void {
    const { clusterId, clusterSecrets, region, nodeId, connectionKeys, log } = this.#options;
    const { isEncrypted } = this.#options;
    const { frame } = decodeAgentFrame(data);
    if (frame.type !== 'register' || frame.hostId !== hostId) throw new Error('not a registration');
    if (frame.clusterId !== clusterId || frame.region !== region) {
      throw new Error(`host of cluster ${frame.clusterId}, region ${frame.region}`);
    }
    assertCompatible(frame.protocol);
    if (frame.internalUrl.startsWith('https:') !== isEncrypted) {
      throw new Error('CLUSTER_TLS_CERT is set on one side only');
    }
    // An agent that was restarted may be faster than the news of its former socket's end.
    this.#links.get(hostId)?.socket.terminate();
    this.waiters.lose(hostId);
    const link: AgentLink = {
      socket,
      publicUrl: frame.publicUrl,
      internalUrl: frame.internalUrl,
      image: frame.image,
      load: frame.load,
      heardAt: performance.now(),
      isSpare: frame.isSpare === true,
      usedAt: performance.now(),
    };
    this.#links.set(hostId, link);
    this.#images = undefined;
    const heard = (): void => {
      link.heardAt = performance.now();
    };
    socket.on('pong', heard);
    socket.on('message', (message: Buffer) => {
      heard();
      this.#handle(socket, () => this.#receive(hostId, link, message));
    });
    socket.on('close', () => {
      if (this.#links.get(hostId) !== link) return;
      log.warn({ hostId }, 'link:closed');
      this.#forget(hostId);
      this.waiters.lose(hostId);
    });
    const keyLink = { nodeId, hostId, region };
    const signed = signConnectionKeys(clusterSecrets, keyLink, connectionKeys);
    const own = { onlyChangedLoads: true, protocol: OWN_VERSIONS };
    socket.send(encodeFrame({ type: 'registered', nodeId, connectionKeys: signed, ...own }));
    const { publicUrl, sandboxRuntime } = frame;
    log.info({ hostId, publicUrl, sandboxRuntime }, 'link:registered');
  }

  #handle(socket: WebSocket, action: () => void): void {
    try {
      action();
    } catch (error) {
      this.#options.log.error({ err: toError(error) }, 'link:badFrame');
      socket.close(1008, toError(error).message.slice(0, 120));
    }
  }

  #receive(hostId: string, link: AgentLink, message: Buffer): void {
    const { frame, body } = decodeAgentFrame(message);
    if (frame.type === 'heartbeat') {
      link.load = frame.load;
      link.isSpare = frame.isSpare === true;
      return;
    }
    if (frame.type === 'register') throw new Error('registered twice');
    this.waiters.receive(hostId, frame, body);
  }

  #beat(): void {
    // A copy, since links are forgotten meanwhile.
    for (const [hostId, link] of this.#links.entries().toArray()) {
      if (performance.now() - link.heardAt > LIMITS.linkSilenceMsMax) {
        this.#options.log.warn({ hostId }, 'link:silent');
        link.socket.terminate();
      } else if (this.#isUnused(hostId, link)) {
        this.#forget(hostId); // At once, so that nobody is given a link that ends.
        link.socket.close(1000, 'not used');
      } else {
        link.socket.ping();
      }
    }
  }

  #forget(hostId: string): void {
    this.#links.delete(hostId);
    this.#images = undefined;
  }

  /** Only this node can tell that it waits for nothing on a link, so it closes it. */
  #isUnused(hostId: string, { isSpare, usedAt }: AgentLink): boolean {
    const isLong = performance.now() - usedAt > REGION_LIMITS.spareLinkMs;
    return isSpare && isLong && this.waiters.pendingOf(hostId) === 0;
  }

  #hostOf(hostId: string, { publicUrl, internalUrl, image, load }: AgentLink): Host {
    const jobsPending = this.waiters.pendingOf(hostId);
    return { hostId, publicUrl, internalUrl, image, load, jobsPending };
  }

  #send(hostId: string, frame: ControlFrame): void {
    const link = this.#links.get(hostId);
    if (link?.socket.readyState === WebSocket.OPEN) link.socket.send(encodeFrame(frame));
  }
}

/** Hosts that do not say what their image is have one, too. */
function distinctImages(images: Iterable<Host['image']>): Host['image'][] {
  return [...new Map([...images].map((image) => [JSON.stringify(image), image])).values()];
}
