import type { Socket } from 'node:net';
import { native } from '../../native/native.ts';
import { connectedSocket } from './connected-socket.ts';
import { NAMESPACES } from './nft.ts';
import type { SlotPlan } from './slot.ts';

/**
 * Begins a connection to a port of a slot's guest from within the slot, without any route to it
 * from outside. The guest sees its gateway as the client.
 * @returns the descriptor of a socket whose connect(2) is under way, for {@link connectedSocket}
 * @throws Error with a `code`: ENOENT when the slot is gone
 */
export const beginConnection = (
  { namespace, guestAddress }: SlotPlan,
  port: number,
): Promise<number> => native.connectInNamespace(`${NAMESPACES}/${namespace}`, guestAddress, port);

/**
 * Connects to a port of a slot's guest, as {@link beginConnection} does.
 * @throws Error with a `code`: ECONNREFUSED when nothing listens, ETIMEDOUT when the guest does not
 *   answer in time, ENOENT when the slot is gone; or the signal's reason
 */
export async function connectToGuest(
  slot: SlotPlan,
  port: number,
  options: { readonly timeoutMs: number; readonly signal?: AbortSignal },
): Promise<Socket> {
  options.signal?.throwIfAborted();
  return connectedSocket(await beginConnection(slot, port), options);
}
