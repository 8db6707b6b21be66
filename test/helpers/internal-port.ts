import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { request } from 'node:https';
import { text } from 'node:stream/consumers';
import type { Environment } from './daemon.ts';

const read = (path: string | undefined) => (path === undefined ? undefined : readFileSync(path));

const ANSWERS_WITHIN_MS = 10_000;

/**
 * Asks an internal port that speaks TLS, with the certificate that the settings name.
 * @returns the status
 */
export const askWithCertificate = async (url: string, settings: Environment): Promise<number> =>
  (await answerWithCertificate(url, settings)).status;

/** Like {@link askWithCertificate}, with the body of the answer. */
export async function answerWithCertificate(
  url: string,
  settings: Environment,
): Promise<{ status: number; body: string }> {
  const sent = request(url, {
    agent: false,
    signal: AbortSignal.timeout(ANSWERS_WITHIN_MS),
    ca: read(settings['CLUSTER_TLS_CA']),
    cert: read(settings['CLUSTER_TLS_CERT']),
    key: read(settings['CLUSTER_TLS_KEY']),
  });
  sent.end();
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  return { status: answer.statusCode ?? 0, body: await text(answer) };
}
