import { WebSocket } from 'ws';
import type { ControlNode } from '../../shared/directory/control-nodes.ts';
import { AppError, toError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import { LINK_LIMITS } from './limits.ts';
import type { SandboxImage } from '../../shared/schemas/sandbox-image.ts';
import type { Logger } from '../../shared/log.ts';
import { readConnectionKeys } from '../../shared/links/connection-keys.ts';
import { assertCompatible, OWN_VERSIONS } from '../../shared/links/protocol-versions.ts';
import { signOnce } from '../../shared/links/single-use-token.ts';
import {
  type AgentFrame,
  decodeControlFrame,
  encodeFrame,
  type HostLoad,
  type SandboxRuntime,
} from '../../shared/links/stream-protocol.ts';
import { type ClusterTls, partTlsOptions } from '../../shared/tls/part-connections.ts';
import type { LinkRequest } from '../../shared/links/link-request.ts';
import { chooseNodes } from './chosen-nodes.ts';
import type { ConnectionKeys } from './connection-keys.ts';
import type { Ring } from '../../shared/secrets.ts';

export interface ControlLinkOptions {
  readonly hostId: string;
  readonly clusterId: string;
  readonly clusterSecrets: Ring<string>;
  readonly clusterTls?: ClusterTls;
  readonly region: string;
  readonly publicUrl: string;
  readonly internalUrl: string;
  /** The host's default image for sandboxes, if it describes itself. */
  readonly image?: SandboxImage;
  /** Undefined when it runs no sandboxes. */
  readonly sandboxRuntime?: SandboxRuntime | undefined;
  readonly log: Logger;
  readonly load: () => HostLoad;
  /** Receives the public connection keys of every node that registers this host. */
  readonly connectionKeys: ConnectionKeys;
  readonly onCancel: (jobId: string) => void;
  /**
   * Called when no control node has been reachable for `linkLossMsMax`: no caller can use the host.
   */
  readonly onCutOff: () => void;
}

interface Link {
  readonly socket: WebSocket;
  registered: boolean;
  /** Settles once the node has registered the host, or the link has failed. */
  readonly registration: PromiseWithResolvers<void>;
  /** Whether the host has the link only because the node has asked for it. */
  isSpare: boolean;
  /** Whether the node knows by the answers to its pings that the host is there. */
  onlyChangedLoads: boolean;
  /** The heartbeat with the load that the node was told last. */
  told: Buffer | undefined;
  /** When it last sent something; by `performance.now()`, like all times here. */
  heardAt: number;
}

/** The close code of a link that one side does not want (RFC 6455, section 7.4.1). */
const POLICY_VIOLATION = 1008;

const heartbeatOf = (load: HostLoad, { isSpare }: Pick<Link, 'isSpare'>): Buffer =>
  encodeFrame({ type: 'heartbeat', load, ...(isSpare ? { isSpare } : {}) });

/**
 * The agent's WebSockets to the control nodes of its region: those that it has chosen, in a small
 * region all, and those that have asked for one (decision 0102).
 */
export class ControlLinks {
  readonly #options: ControlLinkOptions;
  readonly #links = new Map<string, Link>();
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;
  #connectedAt = performance.now();
  #directoryReadAt = performance.now();

  constructor(options: ControlLinkOptions) {
    this.#options = options;
  }

  /** How many control nodes this host is registered with. */
  get registeredCount(): number {
    return [...this.#links.values()].filter((link) => link.registered).length;
  }

  get isConnected(): boolean {
    return this.registeredCount > 0;
  }

  start(): void {
    this.#timer = setInterval(() => this.#beat(), LIMITS.linkHeartbeatMs);
  }

  /**
   * Links to the nodes that the host chooses of these: the directory has just listed them as live.
   */
  linkTo(nodes: readonly ControlNode[]): void {
    const wasReachable = this.#isDirectoryReachable;
    this.#directoryReadAt = performance.now();
    if (!wasReachable) this.sendLoad();
    if (this.#isClosed) return;
    const chosen = chooseNodes(this.#options.hostId, nodes);
    for (const node of nodes) {
      const link = this.#links.get(node.nodeId);
      const isChosen = chosen.has(node.nodeId);
      if (link !== undefined) link.isSpare = !isChosen;
      else if (isChosen) this.#connect(node, { isSpare: false });
    }
  }

  /**
   * Links to a node that asks for it.
   * @returns once the node has registered this host
   * @throws Error when it does not
   */
  async open(node: LinkRequest): Promise<void> {
    if (this.#isClosed) throw new Error('the host is shutting down');
    const link = this.#links.get(node.nodeId) ?? this.#connect(node, { isSpare: true });
    await link.registration.promise;
  }

  /**
   * Sends the present load at once to each node that was told another one, and to each older node:
   * those take a host without heartbeats for a silent one.
   */
  sendLoad(): void {
    const load = this.#load;
    for (const link of this.#links.values()) {
      if (!link.registered) continue;
      const heartbeat = heartbeatOf(load, link);
      if (link.onlyChangedLoads && link.told?.equals(heartbeat) === true) continue;
      link.socket.send(heartbeat);
      link.told = heartbeat;
    }
  }

  /** Sends a frame to a node; false when there is no link to it. */
  send(nodeId: string, frame: AgentFrame, body: readonly Buffer[] = []): boolean {
    const link = this.#links.get(nodeId);
    if (link === undefined || link.socket.readyState !== WebSocket.OPEN) return false;
    link.socket.send(encodeFrame(frame, body));
    return true;
  }

  /** Like {@link send}, but resolves only once the frame was written or the link has closed. */
  async sendWhole(nodeId: string, frame: AgentFrame, body: readonly Buffer[]): Promise<void> {
    const link = this.#links.get(nodeId);
    if (link === undefined || link.socket.readyState !== WebSocket.OPEN) return;
    const message = encodeFrame(frame, body);
    await new Promise<void>((resolve) => {
      link.socket.send(message, () => resolve());
    });
  }

  close(): void {
    this.#isClosed = true;
    clearInterval(this.#timer);
    for (const link of this.#links.values()) link.socket.close(1001, 'agent is shutting down');
  }

  /**
   * A host that cannot reach Redis receives no jobs, so it says `draining` and others get the work.
   */
  get #load(): HostLoad {
    const load = this.#options.load();
    return { ...load, draining: load.draining || !this.#isDirectoryReachable };
  }

  get #isDirectoryReachable(): boolean {
    return performance.now() - this.#directoryReadAt <= LIMITS.linkSilenceMsMax;
  }

  #checkCutOff(): void {
    if (this.isConnected) this.#connectedAt = performance.now();
    if (performance.now() - this.#connectedAt <= LINK_LIMITS.linkLossMsMax) return;
    this.#options.log.warn('link:cutOff');
    this.#options.onCutOff();
    this.#connectedAt = performance.now();
  }

  /** Tells nodes what has changed, and drops the links of silent ones. */
  #beat(): void {
    this.#checkCutOff();
    for (const { socket, heardAt } of this.#links.values()) {
      if (performance.now() - heardAt > LIMITS.linkSilenceMsMax) socket.terminate();
    }
    this.sendLoad();
  }

  #connect(node: LinkRequest, { isSpare }: Pick<Link, 'isSpare'>): Link {
    const { hostId, clusterId, clusterSecrets, clusterTls, connectionKeys, log } = this.#options;
    const claims = { hostId, clusterId, nodeId: node.nodeId };
    const token = signOnce(clusterSecrets, 'agent-link', claims);
    // Encryption does not depend on what the directory says.
    const url = clusterTls === undefined ? node.linkUrl : node.linkUrl.replace(/^ws:/u, 'wss:');
    const socket = new WebSocket(url, {
      ...partTlsOptions(clusterTls),
      headers: { authorization: `Bearer ${token}` },
      perMessageDeflate: false,
      handshakeTimeout: LIMITS.linkSilenceMsMax,
      maxPayload: LIMITS.linkFrameBytesMax,
    });
    const link: Link = {
      ...{ socket, registered: false, onlyChangedLoads: false, told: undefined, isSpare },
      registration: Promise.withResolvers(),
      heardAt: performance.now(),
    };
    link.registration.promise.catch(() => undefined); // Most links are waited for by nobody.
    this.#links.set(node.nodeId, link);
    const heard = (): void => {
      link.heardAt = performance.now();
    };
    socket.on('open', () => this.#register(link));
    socket.on('ping', heard);
    socket.on('message', (data: Buffer) => {
      heard();
      this.#receive(node, link, data);
    });
    socket.on('error', (error) => {
      log.warn({ nodeId: node.nodeId, err: error.message }, 'link:failed');
    });
    socket.on('close', (code, reason) => {
      if (this.#links.get(node.nodeId) === link) this.#links.delete(node.nodeId);
      const failure = new AppError('unavailable', `the link to ${node.nodeId} has failed`);
      link.registration.reject(failure);
      if (link.registered) {
        connectionKeys.release(node.nodeId);
        log.info({ nodeId: node.nodeId, code, reason: reason.toString() }, 'link:closed');
      } else if (code === POLICY_VIOLATION) {
        log.warn({ nodeId: node.nodeId, reason: reason.toString() }, 'link:refused');
      }
    });
    return link;
  }

  #register(link: Link): void {
    const { hostId, clusterId, region, publicUrl, internalUrl } = this.#options;
    const { image, sandboxRuntime } = this.#options;
    const said = {
      ...{ publicUrl, internalUrl },
      ...(image === undefined ? {} : { image }),
      ...(sandboxRuntime === undefined ? {} : { sandboxRuntime }),
    };
    const load = this.#load;
    const spare = link.isSpare ? { isSpare: true } : {};
    const own = { load, ...spare, protocol: OWN_VERSIONS };
    link.socket.send(encodeFrame({ type: 'register', hostId, clusterId, region, ...said, ...own }));
    link.told = heartbeatOf(load, link);
  }

  #holdKeys(nodeId: string, signed: string): void {
    const { hostId, region, clusterSecrets, connectionKeys } = this.#options;
    const keys = readConnectionKeys(clusterSecrets, { nodeId, hostId, region }, signed);
    connectionKeys.hold(nodeId, keys);
  }

  #receive(node: LinkRequest, link: Link, data: Buffer): void {
    const { log, onCancel } = this.#options;
    try {
      const frame = decodeControlFrame(data);
      switch (frame.type) {
        case 'registered': {
          assertCompatible(frame.protocol);
          this.#holdKeys(node.nodeId, frame.connectionKeys);
          link.registered = true;
          link.registration.resolve();
          link.onlyChangedLoads = frame.onlyChangedLoads === true;
          log.info({ nodeId: node.nodeId }, 'link:registered');
          break;
        }
        case 'cancel': {
          onCancel(frame.jobId);
          break;
        }
      }
    } catch (error) {
      log.error({ nodeId: node.nodeId, err: toError(error) }, 'link:badFrame');
      link.socket.close(1008, 'bad frame');
    }
  }
}
