import { Socket } from 'node:net';
import { native } from '../native/native.ts';
import { NAMESPACES } from './nft.ts';
import type { SlotPlan } from './slot.ts';

/**
 * Connects to a port of a slot's guest from within the slot, without any route to it from outside.
 * The guest sees its gateway as the client.
 * @throws Error with a `code`: ECONNREFUSED when nothing listens, ETIMEDOUT when the guest does not
 *   answer in time, ENOENT when the slot is gone; or the signal's reason
 */
export async function connectToGuest(
  { namespace, guestAddress }: SlotPlan,
  port: number,
  { timeoutMs, signal }: { readonly timeoutMs: number; readonly signal?: AbortSignal },
): Promise<Socket> {
  signal?.throwIfAborted();
  const path = `${NAMESPACES}/${namespace}`;
  const fd = await native.connectInNamespace(path, guestAddress, port);
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
