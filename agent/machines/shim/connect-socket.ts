import { closeSync, constants, openSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { basename, dirname } from 'node:path';

/** Adds a listener, because an `error` event without one would end the agent. */
const withErrorListener = (socket: Socket): Socket => socket.on('error', () => undefined);

/**
 * Connects to a socket by the descriptor of its directory, because its path may be longer than a
 * socket address can be (108 bytes, unix(7)). Fails like `net.connect`, also when the directory is
 * missing.
 */
export function connectSocket(path: string): Socket {
  let directory: number;
  try {
    directory = openSync(dirname(path), constants.O_RDONLY | constants.O_DIRECTORY);
  } catch {
    return withErrorListener(connect({ path }));
  }
  try {
    return withErrorListener(connect({ path: `/proc/self/fd/${directory}/${basename(path)}` }));
  } finally {
    closeSync(directory); // connect has resolved the path before it returned.
  }
}
