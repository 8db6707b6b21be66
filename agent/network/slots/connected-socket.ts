import { Socket } from 'node:net';

/**
 * Waits for a connection that is being made.
 * @param fd of a TCP socket whose connect(2) is under way; closed when this fails
 * @throws Error with a `code`: ECONNREFUSED when nothing listens, ETIMEDOUT when the other side
 *   does not answer in time; or the signal's reason
 */
export async function connectedSocket(
  fd: number,
  { timeoutMs, signal }: { readonly timeoutMs: number; readonly signal?: AbortSignal | undefined },
): Promise<Socket> {
  const socket = new Socket({ fd, readable: true, writable: true });
  const giveUp = (): void => {
    const error = new Error(`the guest did not answer within ${timeoutMs} ms`);
    socket.destroy(Object.assign(error, { code: 'ETIMEDOUT' }));
  };
  const abort = (): void => {
    socket.destroy(signal?.reason as Error);
  };
  const timer = setTimeout(giveUp, timeoutMs);
  signal?.addEventListener('abort', abort, { once: true });
  if (signal?.aborted === true) abort(); // While the connection was begun: no event follows.
  try {
    await untilConnected(socket);
    return socket;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', abort);
  }
}

/** A write of nothing ends when the connection is there, or with what became of it. */
async function untilConnected(socket: Socket): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    socket.once('error', reject);
    socket.write('', (error) => {
      if (error) return;
      socket.off('error', reject);
      resolve();
    });
  });
}
