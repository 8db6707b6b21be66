import { Agent as HttpAgent, type ClientRequestArgs } from 'node:http';
import { Agent as HttpsAgent, type RequestOptions } from 'node:https';
import type { SecureContext } from 'node:tls';

const PER_HOST_MAX = 64;
const PER_SLOT_MAX = 256;
const UNUSED_MAX = 8;
/** Shorter than servers usually keep an unused connection. */
const UNUSED_MS = 4_000;

/** The addresses that a request may go to, the preferred one first. */
interface Addressed {
  readonly addresses?: readonly string[];
}

/** In resolvers' answers the order of the others changes all the time. */
function nameOf(server: string, { addresses = [] }: Addressed = {}): string {
  const [preferred = '', ...others] = addresses;
  return [server, preferred, ...others.toSorted()].join(':');
}

class PlainAgent extends HttpAgent {
  override getName(options?: ClientRequestArgs & Addressed): string {
    return nameOf(super.getName(options), options);
  }
}

class SecureAgent extends HttpsAgent {
  override getName(options?: RequestOptions & Addressed): string {
    return nameOf(super.getName(options), options);
  }
}

/**
 * Keeps connections to servers for the next requests of the same slot that may go to the same
 * addresses: Node's own agents look at names alone.
 */
export class UpstreamAgents {
  readonly plain: HttpAgent;
  readonly secure: HttpsAgent;

  /** @param trust the certificates that servers are verified with */
  constructor(trust: SecureContext) {
    const options = {
      keepAlive: true,
      maxSockets: PER_HOST_MAX,
      maxTotalSockets: PER_SLOT_MAX,
      maxFreeSockets: UNUSED_MAX,
      timeout: UNUSED_MS, // Requests set a longer one for themselves.
    };
    this.plain = new PlainAgent(options);
    this.secure = new SecureAgent({ ...options, secureContext: trust });
  }

  /** Ends unused connections; requests under way go on. */
  retire(): void {
    for (const agent of [this.plain, this.secure]) {
      agent.maxFreeSockets = 0;
      for (const socket of Object.values(agent.freeSockets).flat()) socket?.destroy();
    }
  }

  close(): void {
    this.plain.destroy();
    this.secure.destroy();
  }
}
