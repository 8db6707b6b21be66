import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { WebSocketServer, type WebSocket } from 'ws';
import type { ControlNodes } from '../../shared/directory/control-nodes.ts';
import { newNodeId } from '../../shared/ids.ts';
import {
  type AgentFrame,
  type ControlFrame,
  decodeAgentFrame,
  encodeFrame,
} from '../../shared/links/stream-protocol.ts';
import type { Stack } from './stack.ts';

type Registration = Extract<AgentFrame, { type: 'register' }>;

/** A control node that a test plays: the agent of a stack links to it and registers. */
export class PlayedNode implements AsyncDisposable {
  readonly nodeId = newNodeId();
  /** Frames that the agent has sent. */
  readonly frames: AgentFrame[] = [];
  readonly #server = new WebSocketServer({ port: 0, host: '127.0.0.1' });
  readonly #nodes: ControlNodes;
  readonly #registered = Promise.withResolvers<Registration>();
  readonly #closed = Promise.withResolvers<void>();
  #socket: WebSocket | undefined;
  #announcing: NodeJS.Timeout | undefined;

  private constructor(nodes: ControlNodes) {
    this.#nodes = nodes;
    this.#server.on('connection', (socket) => {
      this.#socket = socket;
      socket.on('message', (data: Buffer) => this.#receive(data));
      socket.on('close', () => this.#closed.resolve());
    });
  }

  static async open(stack: Stack): Promise<PlayedNode> {
    const { controlNodes } = await stack.openDirectory();
    const node = new PlayedNode(controlNodes);
    await once(node.#server, 'listening');
    await node.#announce();
    node.#announcing = setInterval(() => {
      node.#announce().catch(() => undefined);
      node.#socket?.ping();
    }, 1_000);
    return node;
  }

  get registration(): Promise<Registration> {
    return this.#registered.promise;
  }

  /** Settles when the agent has ended a link. */
  get closed(): Promise<void> {
    return this.#closed.promise;
  }

  send(frame: ControlFrame): void {
    this.#socket?.send(encodeFrame(frame));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#announcing);
    await this.#nodes.withdraw(this.nodeId);
    this.#socket?.terminate();
    this.#server.close();
  }

  #receive(data: Buffer): void {
    const { frame } = decodeAgentFrame(data);
    this.frames.push(frame);
    if (frame.type === 'register') this.#registered.resolve(frame);
  }

  #announce(): Promise<void> {
    const { port } = this.#server.address() as AddressInfo;
    const { nodeId } = this;
    const linkUrl = `ws://127.0.0.1:${port}/agent-link`;
    return this.#nodes.announce({ nodeId, linkUrl, linkShare: 1 }, false);
  }
}
