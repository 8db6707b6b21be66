import { isIP } from 'node:net';
import { urlToHttpOptions } from 'node:url';
import { Webhook as Signer } from 'standardwebhooks';
import { toError } from '../../../shared/errors.ts';
import { awaitAnswer, beginRequest } from '../../../shared/http/send-request.ts';
import { REGION_LIMITS } from '../limits.ts';
import { reachableLookup } from '../../../shared/reachable-lookup.ts';
import { portOf, type ReachableNetworks } from '../../../shared/reachable-networks.ts';
import type { ActivityEvent } from '../../../shared/schemas/activity.ts';
import { resolveName } from './resolve-name.ts';

/** Result of an attempt. */
export interface Attempt {
  /** Undefined: there was no answer. */
  readonly status?: number;
  /** Undefined: it was delivered. */
  readonly problem?: string;
}

const privateAddress = (host: string): Error => new Error(`${host} is a private address`);

/**
 * Why a URL cannot be that of a webhook, as far as its text says; names are judged when they are
 * resolved, for each attempt.
 */
export function whyNoWebhook(text: string, networks: ReachableNetworks): string | undefined {
  if (!URL.canParse(text)) return 'url is not a URL';
  const parsed = new URL(text);
  const { protocol, hostname, username, password, hash } = parsed;
  if (username !== '' || password !== '' || hash !== '') {
    return 'url must have neither credentials nor a fragment';
  }
  const name = hostname.replaceAll(/^\[|\]$/gu, '').replace(/\.$/u, '');
  const address = /(?:^|\.)localhost$/u.test(name) ? '127.0.0.1' : name;
  const port = portOf(parsed);
  if (isIP(address) !== 0 && !networks.allows(address, port)) return 'url is of a private address';
  return protocol === 'https:' || networks.isNamed(address, port)
    ? undefined
    : 'url must begin with https://';
}

/** The body: type, time and data, as Standard Webhooks has them. */
const bodyOf = (event: ActivityEvent): string =>
  JSON.stringify({ type: event.eventType, timestamp: event.createdAt, data: event });

/**
 * Sends an event once, signed as Standard Webhooks says (`webhook-id`, `webhook-timestamp`,
 * `webhook-signature`), on a connection of its own to an address that was checked. Never throws.
 */
export async function sendWebhook(
  { url, secret }: { readonly url: string; readonly secret: string },
  event: ActivityEvent,
  networks: ReachableNetworks,
): Promise<Attempt> {
  const body = bodyOf(event);
  const now = new Date();
  const refusal = whyNoWebhook(url, networks);
  if (refusal !== undefined) return { problem: refusal };
  const signal = AbortSignal.timeout(REGION_LIMITS.webhookAnswerMsMax);
  try {
    const target = new URL(url);
    const sent = beginRequest(target.protocol === 'https:', {
      ...urlToHttpOptions(target),
      method: 'POST',
      agent: false,
      lookup: reachableLookup(networks, portOf(target), privateAddress, (name) =>
        resolveName(name, signal),
      ),
      signal,
      headers: {
        'content-type': 'application/json',
        'content-length': Buffer.byteLength(body),
        'user-agent': 'berth-webhooks/1',
        'webhook-id': event.eventId,
        'webhook-timestamp': String(Math.floor(now.getTime() / 1000)),
        'webhook-signature': new Signer(secret).sign(event.eventId, now, body),
      },
    });
    sent.end(body);
    // Redirects are answers like others: they are not followed.
    const { statusCode: status = 0 } = await awaitAnswer(sent);
    sent.destroy(); // The rest of the receiver's answer is not read.
    if (status >= 200 && status < 300) return { status };
    return { status, problem: `the receiver answered ${status}` };
  } catch (thrown) {
    return { problem: signal.aborted ? 'no answer in time' : toError(thrown).message };
  }
}
