import { WebSocket } from 'ws';
import type { ControlNode, ControlNodes } from '../../shared/directory/control-nodes.ts';
import { toError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { SandboxImage } from '../../shared/schemas/sandbox-image.ts';
import type { Logger } from '../../shared/log.ts';
import { readConnectionKeys } from '../../shared/links/connection-keys.ts';
import { signOnce } from '../../shared/links/single-use-token.ts';
import {
  type AgentFrame,
  decodeControlFrame,
  encodeFrame,
  type HostLoad,
} from '../../shared/links/stream-protocol.ts';
import type { ConnectionKeys } from './connection-keys.ts';

export interface ControlLinkOptions {
  readonly hostId: string;
  readonly clusterId: string;
  readonly clusterSecret: string;
  readonly region: string;
  readonly publicUrl: string;
  readonly internalUrl: string;
  /** What the host's sandboxes begin with, if its image says so. */
  readonly image?: SandboxImage;
  readonly nodes: ControlNodes;
  readonly log: Logger;
  readonly load: () => HostLoad;
  /** Told the keys of every node that has registered this host. */
  readonly connectionKeys: ConnectionKeys;
  readonly onCancel: (jobId: string) => void;
  /** No control node was reached for long: nobody can use this host's disks through it. */
  readonly onCutOff: () => void;
}

interface Link {
  readonly socket: WebSocket;
  registered: boolean;
  heardAt: number;
}

/** The agent's WebSockets to every live control node of its region. */
export class ControlLinks {
  readonly #options: ControlLinkOptions;
  readonly #links = new Map<string, Link>();
  #timer: NodeJS.Timeout | undefined;
  #connectedAt = Date.now();
  #directoryReadAt = Date.now();

  constructor(options: ControlLinkOptions) {
    this.#options = options;
  }

  /** Registered with at least one control node. */
  get isConnected(): boolean {
    return [...this.#links.values()].some((link) => link.registered);
  }

  start(): void {
    const beat = (): void => {
      this.#noticeCutOff();
      this.#refresh().catch((error: unknown) => {
        this.#options.log.warn({ err: toError(error) }, 'link:nodesUnknown');
      });
    };
    this.#timer = setInterval(beat, LIMITS.linkHeartbeatMs);
    beat();
  }

  /** Tells every node the load now. */
  tellLoad(): void {
    const heartbeat = encodeFrame({ type: 'heartbeat', load: this.#load });
    for (const { socket, registered } of this.#links.values()) {
      if (registered) socket.send(heartbeat);
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
    clearInterval(this.#timer);
    for (const link of this.#links.values()) link.socket.close(1001, 'agent is shutting down');
  }

  /** A host that Redis cannot be reached from gets no jobs: other hosts should be given the work. */
  get #load(): HostLoad {
    const load = this.#options.load();
    return { ...load, draining: load.draining || !this.#isDirectoryNear };
  }

  get #isDirectoryNear(): boolean {
    return Date.now() - this.#directoryReadAt <= LIMITS.linkSilenceMsMax;
  }

  #noticeCutOff(): void {
    if (this.isConnected) this.#connectedAt = Date.now();
    if (Date.now() - this.#connectedAt <= LIMITS.linkLossMsMax) return;
    this.#options.log.warn('link:cutOff');
    this.#options.onCutOff();
    this.#connectedAt = Date.now();
  }

  /** Tells every node the load, drops silent ones, connects to new ones. */
  async #refresh(): Promise<void> {
    for (const { socket, heardAt } of this.#links.values()) {
      if (Date.now() - heardAt > LIMITS.linkSilenceMsMax) socket.terminate();
    }
    this.tellLoad();
    const nodes = await this.#options.nodes.live();
    const wasNear = this.#isDirectoryNear;
    this.#directoryReadAt = Date.now();
    if (!wasNear) this.tellLoad();
    for (const node of nodes) {
      if (!this.#links.has(node.nodeId)) this.#connect(node);
    }
  }

  #connect(node: ControlNode): void {
    const { hostId, clusterId, clusterSecret, connectionKeys, log } = this.#options;
    const claims = { hostId, clusterId, nodeId: node.nodeId };
    const token = signOnce(clusterSecret, 'agent-link', claims);
    const socket = new WebSocket(node.linkUrl, {
      headers: { authorization: `Bearer ${token}` },
      perMessageDeflate: false,
      handshakeTimeout: LIMITS.linkSilenceMsMax,
      maxPayload: LIMITS.linkFrameBytesMax,
    });
    const link: Link = { socket, registered: false, heardAt: Date.now() };
    this.#links.set(node.nodeId, link);
    const heard = (): void => {
      link.heardAt = Date.now();
    };
    socket.on('open', () => this.#register(socket));
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
      if (link.registered) {
        connectionKeys.release(node.nodeId);
        log.info({ nodeId: node.nodeId, code, reason: reason.toString() }, 'link:closed');
      }
    });
  }

  #register(socket: WebSocket): void {
    const { hostId, clusterId, region, publicUrl, internalUrl, image } = this.#options;
    const said = { publicUrl, internalUrl, ...(image === undefined ? {} : { image }) };
    const load = this.#load;
    socket.send(encodeFrame({ type: 'register', hostId, clusterId, region, ...said, load }));
  }

  #holdKeys(nodeId: string, signed: string): void {
    const { hostId, region, clusterSecret, connectionKeys } = this.#options;
    const keys = readConnectionKeys(clusterSecret, { nodeId, hostId, region }, signed);
    connectionKeys.hold(nodeId, keys);
  }

  #receive(node: ControlNode, link: Link, data: Buffer): void {
    const { log, onCancel } = this.#options;
    try {
      const frame = decodeControlFrame(data);
      switch (frame.type) {
        case 'registered': {
          this.#holdKeys(node.nodeId, frame.connectionKeys);
          link.registered = true;
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
