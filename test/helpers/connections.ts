import { readdir } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';

/** Connections that a test holds open; disposing closes them. */
export class HeldConnections implements Disposable {
  readonly #sockets: Socket[] = [];

  /** @returns how many connections the server has not closed */
  get openCount(): number {
    return this.#sockets.filter((socket) => !socket.destroyed).length;
  }

  /**
   * Opens connections one after the other, and sends a beginning on each.
   * @param from the client's own address, 127.x.y.z
   */
  async open(
    url: string,
    count: number,
    { from, beginning = '' }: { from: string; beginning?: string },
  ): Promise<void> {
    const { hostname, port } = new URL(url);
    for (let opened = 0; opened < count; opened += 1) {
      const socket = connect({ host: hostname, port: Number(port), localAddress: from });
      this.#sockets.push(socket);
      socket.on('error', () => undefined).resume();
      await new Promise((resolve) => {
        socket.once('connect', resolve).once('close', resolve);
      });
      if (beginning !== '' && !socket.destroyed) socket.write(beginning);
    }
  }

  [Symbol.dispose](): void {
    for (const socket of this.#sockets) socket.destroy();
  }
}

/** How many descriptors a process has open. */
export const descriptorsOf = async (pid: number): Promise<number> =>
  (await readdir(`/proc/${pid}/fd`)).length;
