import type { Socket } from 'node:net';
import type { Duplex, Transform } from 'node:stream';
import { PROXY_LIMITS } from './limits.ts';

/**
 * Passes bytes on in both directions, each until its end, until both have ended or nothing has
 * moved for long. An error on one side resets the other one.
 * @param answers what the server's bytes pass through
 * @param onEnd called once, when both are closed
 */
export function joinSockets(
  client: Duplex,
  server: Socket,
  { answers, onEnd }: { answers?: Transform | undefined; onEnd: () => void },
): void {
  let open = 2;
  const closeBoth = (): void => {
    client.destroy();
    server.destroy();
    answers?.destroy();
  };
  for (const side of [client, server]) {
    side.on('error', closeBoth);
    side.once('close', () => {
      // A side that was closed before its end was read or written can only be cut off.
      if (!side.readableEnded || !side.writableFinished) closeBoth();
      open -= 1;
      if (open === 0) onEnd();
    });
  }
  server.setTimeout(PROXY_LIMITS.idleMs, closeBoth);
  client.pipe(server);
  if (answers === undefined) server.pipe(client);
  else server.pipe(answers).pipe(client);
}
