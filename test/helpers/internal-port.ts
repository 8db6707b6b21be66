import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { request } from 'node:https';
import type { Environment } from './daemon.ts';

const read = (path: string | undefined) => (path === undefined ? undefined : readFileSync(path));

/**
 * Asks an internal port that speaks TLS, with the certificate that the settings name.
 * @returns the status
 */
export async function askWithCertificate(url: string, settings: Environment): Promise<number> {
  const sent = request(url, {
    agent: false,
    ca: read(settings['CLUSTER_TLS_CA']),
    cert: read(settings['CLUSTER_TLS_CERT']),
    key: read(settings['CLUSTER_TLS_KEY']),
  });
  sent.end();
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  answer.resume();
  return answer.statusCode ?? 0;
}
