import type { Server } from 'node:http';
import type { Server as TlsServer, ServerOptions } from 'node:https';
import type { Certificates } from './certificates.ts';

/**
 * Options of a server with these certificates. With an authority, it refuses peers without a
 * certificate.
 */
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
