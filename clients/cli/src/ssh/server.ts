import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Sandbox } from '@berth/sdk';
import ssh2, { type Connection } from 'ssh2';
import type { Report } from './channel.ts';
import { forward } from './forward.ts';
import { serveSession } from './session.ts';

/**
 * Access is decided by the parent process that started us: the other end of the pipe is our own
 * parent.
 */
const acceptAnybody = (connection: Connection): void => {
  connection.on('authentication', (context) => context.accept());
};

/**
 * Speaks the server's part of SSH over a stream, for a sandbox that has no SSH server: each session
 * becomes a process of the sandbox, so it outlives broken networks and pauses of the sandbox.
 * Resolves when the client has gone and everything that it left is cleared up.
 * @param hostKey private key in PEM or OpenSSH's format
 */
export async function serveSsh(
  sandbox: Sandbox,
  stream: Duplex,
  hostKey: string,
  report: Report,
): Promise<void> {
  const over = Promise.withResolvers<void>();
  const work = new Set<Promise<void>>();
  const begin = (job: Promise<void>): void => {
    const settled = job.catch(report).finally(() => work.delete(settled));
    work.add(settled);
  };
  const server = new ssh2.Server({ hostKeys: [hostKey], ident: 'Berth' }, (connection) => {
    acceptAnybody(connection);
    connection.on('session', (accept) => serveSession(sandbox, accept(), begin, report));
    connection.on('tcpip', (accept, reject, { destIP, destPort }) => {
      begin(forward(sandbox, { host: destIP, port: destPort }, accept, reject));
    });
    // Listening in the sandbox for the client (ssh -R) is not offered.
    connection.on('request', (_accept, reject) => reject?.());
    connection.on('error', report);
    connection.on('close', () => over.resolve());
  });
  stream.once('close', () => over.resolve());
  server.injectSocket(stream as Socket); // ssh2 uses no more of a socket than a stream has.
  await over.promise;
  await Promise.all(work);
}
