import { setTimeout as sleep } from 'node:timers/promises';
import type { Hosts } from '../../shared/directory/hosts.ts';
import type { ControlNode } from '../../shared/directory/control-nodes.ts';
import { toError } from '../../shared/errors.ts';
import { REGION_LIMITS } from './limits.ts';
import { LINK_REQUEST_PATH } from '../../shared/links/link-request.ts';
import { checkTaken, type PartAuth, PartRequests } from '../../shared/links/part-requests.ts';
import type { Logger } from '../../shared/log.ts';
import type { AgentHub } from './agent-hub.ts';
import type { Host } from './known-hosts.ts';
import type { LinkShare } from './link-share.ts';

/** Connections are not kept: one request leads to a link that lasts. */
const FREE_SOCKETS_PER_HOST = 0;
/** How often a host is asked that believes to be linked. */
const TRIES_MAX = 4;

export interface HostFinderOptions {
  readonly hub: AgentHub;
  readonly hosts: Pick<Hosts, 'find'>;
  readonly share: LinkShare;
  /** This node, as hosts find it in the directory. */
  readonly node: Pick<ControlNode, 'nodeId' | 'linkUrl'>;
  readonly auth: PartAuth;
  readonly log: Logger;
}

/**
 * Finds a certain host of the region. In a large region not all hosts are linked to this node: one
 * that is not is asked for a link first (decision 0102).
 */
export class HostFinder {
  readonly #options: HostFinderOptions;
  readonly #requests: PartRequests;
  /** Hosts that are being asked, or were asked in vain a moment ago. */
  readonly #asked = new Map<string, Promise<void>>();

  constructor(options: HostFinderOptions) {
    this.#options = options;
    this.#requests = new PartRequests(options.auth, FREE_SOCKETS_PER_HOST);
  }

  /** The host, linked to this node; undefined while it cannot be reached. */
  async find(hostId: string): Promise<Host | undefined> {
    await this.bring([hostId]);
    return this.#options.hub.find(hostId);
  }

  /** Has the hosts link to this node, where they are not linked yet and can be reached. */
  async bring(hostIds: readonly string[]): Promise<void> {
    const { hub, share } = this.#options;
    if (!share.isPartial) return;
    const missing = hostIds.filter((hostId) => hub.find(hostId) === undefined);
    await Promise.all(missing.map((hostId) => this.#ask(hostId)));
  }

  close(): void {
    this.#requests.close();
  }

  /** Asks a host once for all who want it, and not again at once when it cannot be reached. */
  #ask(hostId: string): Promise<void> {
    const asking = this.#asked.get(hostId) ?? this.#askOnce(hostId);
    this.#asked.set(hostId, asking);
    return asking;
  }

  async #askOnce(hostId: string): Promise<void> {
    try {
      await this.#askUntilLinked(hostId);
      this.#asked.delete(hostId);
    } catch (error) {
      this.#options.log.warn({ hostId, err: toError(error) }, 'link:requestFailed');
      setTimeout(() => this.#asked.delete(hostId), REGION_LIMITS.linkRequestAgainMs).unref();
    }
  }

  async #askUntilLinked(hostId: string): Promise<void> {
    const { hub, hosts } = this.#options;
    const baseUrl = await hosts.find(hostId);
    if (baseUrl === undefined) return; // The host is away.
    for (let tries = 1; hub.find(hostId) === undefined && tries <= TRIES_MAX; tries += 1) {
      // A host that has not heard yet that its former link was closed takes it for a good one.
      if (tries > 1) await sleep(REGION_LIMITS.linkRequestAgainMs / TRIES_MAX);
      await this.#request(hostId, baseUrl);
    }
  }

  async #request(hostId: string, baseUrl: string): Promise<void> {
    const { nodeId, linkUrl } = this.#options.node;
    const answer = await this.#requests.ask(
      {
        ...{ purpose: 'link-request', claims: { nodeId, linkUrl }, hostId, baseUrl },
        ...{ method: 'POST', target: LINK_REQUEST_PATH },
        rawHeaders: ['Host', new URL(baseUrl).host],
      },
      REGION_LIMITS.linkRequestMsMax,
    );
    answer.resume();
    checkTaken(answer);
  }
}
