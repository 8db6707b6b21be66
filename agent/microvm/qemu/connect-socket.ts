import { closeSync, constants, openSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { basename, dirname } from 'node:path';

/** An error that comes when its owner has stopped listening must not end the agent. */
const heard = (socket: Socket): Socket => socket.on('error', () => undefined);

/**
 * Connects to a socket whose path may be longer than an address can be (108 bytes, unix(7)): by the
 * descriptor of its directory. Fails like `net.connect`, also when there is no such directory.
 */
export function connectSocket(path: string): Socket {
  let directory: number;
  try {
    directory = openSync(dirname(path), constants.O_RDONLY | constants.O_DIRECTORY);
  } catch {
    return heard(connect({ path }));
  }
  try {
    return heard(connect({ path: `/proc/self/fd/${directory}/${basename(path)}` }));
  } finally {
    closeSync(directory); // The kernel has looked the path up before connect returned.
  }
}
