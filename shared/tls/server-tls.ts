import type { Server } from 'node:http';
import type { Server as TlsServer, ServerOptions } from 'node:https';
import type { Certificates } from './certificates.ts';

/** How a server with these certificates is made. With an authority, peers without a certificate are refused. */
export const serverTlsOptions = (certificates: Certificates): ServerOptions => ({
  ...certificates.contents,
  requestCert: certificates.areMutual,
  rejectUnauthorized: certificates.areMutual,
});

/** Has a server show its new certificate to new connections whenever it is replaced. */
export function followCertificates(server: Server | TlsServer, certificates: Certificates): void {
  if (!('setSecureContext' in server)) return;
  const stop = certificates.onChange(() => server.setSecureContext(certificates.contents));
  server.once('close', stop);
}
