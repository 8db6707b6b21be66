import type { Writable } from 'node:stream';
import type { Process } from '@berth/sdk';
import type { Channel } from 'ssh2';

/** Tells whoever reads the standard error why something was not done. */
export type Report = (error: unknown) => void;

/** Resolves when the client has closed the channel or has gone. */
export const closed = (channel: Channel): Promise<void> =>
  new Promise((resolve) => {
    channel.once('close', resolve);
  });

/** The channel was closed while something was on its way to it. */
export class ChannelClosed extends Error {}

/**
 * Writes at the client's pace. A channel that is closed never says that it took the bytes, so its
 * end is waited for as well.
 * @throws ChannelClosed
 */
export async function send(target: Writable, bytes: Uint8Array, end: Promise<void>): Promise<void> {
  const taken = new Promise<boolean>((resolve) => {
    target.write(bytes, () => resolve(true));
  });
  const isTaken = await Promise.race([taken, end.then(() => false)]);
  if (!isTaken) throw new ChannelClosed('the client closed the channel');
}

/** Passes what the client sends on to the process, and its end as the end of input. */
export async function passInput(channel: Channel, process: Process): Promise<void> {
  // Not destroyed at its end: the other direction goes on.
  for await (const bytes of channel.iterator({ destroyOnReturn: false })) {
    await process.write(bytes as Buffer);
  }
  process.closeInput();
}
