import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

/** Stands between two processes on the loopback address, so that a test can disturb their link. */
export class Relay implements AsyncDisposable {
  readonly #targetPort: number;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #latencyMs = 0;
  /** Set while bytes are held back. */
  #mended: PromiseWithResolvers<void> | undefined;

  private constructor(targetPort: number) {
    this.#targetPort = targetPort;
    this.#server = createServer({ allowHalfOpen: true }, (socket) => void this.#join(socket));
  }

  static async to(targetPort: number): Promise<Relay> {
    const relay = new Relay(targetPort);
    relay.#server.listen(0, '127.0.0.1');
    await once(relay.#server, 'listening');
    return relay;
  }

  get port(): number {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('the relay is closed');
    return address.port;
  }

  /** Holds all bytes back without closing connections, like a network that drops packets. */
  cut(): void {
    this.#mended ??= Promise.withResolvers();
  }

  /** Delivers the bytes that were held back, like retransmitted packets. */
  mend(): void {
    this.#mended?.resolve();
    this.#mended = undefined;
  }

  /** Delays each read of a connection by this many milliseconds. */
  slowDown(latencyMs: number): void {
    this.#latencyMs = latencyMs;
  }

  /** Resets all present connections. New ones are accepted. */
  breakAll(): void {
    for (const socket of this.#sockets) socket.resetAndDestroy();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.mend();
    this.breakAll();
    this.#server.close();
    await once(this.#server, 'close');
  }

  async #join(near: Socket): Promise<void> {
    this.#track(near);
    await this.#mended?.promise;
    const far = connect({ port: this.#targetPort, host: '127.0.0.1', allowHalfOpen: true });
    this.#track(far);
    const end = (): void => {
      near.destroy();
      far.destroy();
    };
    near.on('error', end);
    far.on('error', end);
    await Promise.all([this.#pass(near, far), this.#pass(far, near)]).catch(end);
  }

  #track(socket: Socket): void {
    this.#sockets.add(socket);
    socket.setNoDelay(true);
    socket.on('error', () => undefined); // Reported by the reader or writer.
    socket.on('close', () => this.#sockets.delete(socket));
  }

  async #pass(from: Socket, to: Socket): Promise<void> {
    for await (const chunk of from) {
      if (this.#latencyMs > 0) await sleep(this.#latencyMs);
      await this.#mended?.promise;
      if (!to.write(chunk as Buffer) && !to.destroyed) {
        await Promise.race([once(to, 'drain'), once(to, 'close')]);
      }
    }
    await this.#mended?.promise;
    to.end();
  }
}

/**
 * How the processes reach each other; each relay can be disturbed alone: `links` from both agents
 * to control, `redis` from the second host to Redis, `internal` from control and the other host to
 * the second host's internal port.
 */
export type Relays = Readonly<Record<'links' | 'redis' | 'internal', Relay>>;
