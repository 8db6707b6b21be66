import type { CallOptions, CreatingCallOptions, Http } from './http.ts';
import { Pages } from './pages.ts';
import type {
  CreatedPortToken,
  CreatePortToken,
  NetworkDecision,
  NetworkPolicy,
  PortToken,
  SandboxPort,
  ShownNetworkPolicy,
} from './types.ts';

const READ = { retry: 'repeatable' } as const;
const DELETION = { retry: 'repeatable', isDeletion: true } as const;
type ListOptions = CallOptions & { readonly limit?: number };

/** The network policy of a sandbox, and the ways from outside to its ports. */
export class SandboxNetwork {
  readonly #http: Http;
  readonly #sid: string;

  /** @internal */
  constructor(http: Http, sandboxId: string) {
    this.#http = http;
    this.#sid = sandboxId;
  }

  /** Without secrets. */
  async policy(options: CallOptions = {}): Promise<ShownNetworkPolicy> {
    const params = { path: { sid: this.#sid } };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.GET('/api/sandboxes/{sid}/network', { ...init, params }),
    );
    return data;
  }

  /** Replaces all of it. @returns it as it counts now */
  async setPolicy(policy: NetworkPolicy, options: CallOptions = {}): Promise<ShownNetworkPolicy> {
    const params = { path: { sid: this.#sid } };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.PUT('/api/sandboxes/{sid}/network', { ...init, params, body: policy }),
    );
    return data;
  }

  /** Decisions about the connections that the sandbox tried, newest first. */
  decisions({ limit = 100, ...options }: ListOptions = {}): Pages<NetworkDecision> {
    return new Pages(async (cursor) => {
      const query = { limit, ...(cursor === undefined ? {} : { cursor }) };
      const params = { path: { sid: this.#sid }, query };
      const { data, nextCursor } = await this.#http.call(READ, options, (client, init) =>
        client.GET('/api/sandboxes/{sid}/network/decisions', { ...init, params }),
      );
      return { items: data.decisions, nextCursor };
    });
  }

  /** The ports that were exposed through the API. */
  async ports(options: CallOptions = {}): Promise<SandboxPort[]> {
    const params = { path: { sid: this.#sid } };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.GET('/api/sandboxes/{sid}/ports', { ...init, params }),
    );
    return data.ports;
  }

  /** Makes a port public. @returns its hostname */
  async expose(port: number, options: CallOptions = {}): Promise<SandboxPort> {
    const params = { path: { sid: this.#sid, port } };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.PUT('/api/sandboxes/{sid}/ports/{port}', { ...init, params }),
    );
    return data;
  }

  /** Takes back that a port is public. */
  async unexpose(port: number, options: CallOptions = {}): Promise<void> {
    const params = { path: { sid: this.#sid, port } };
    await this.#http.call(READ, options, (client, init) =>
      client.DELETE('/api/sandboxes/{sid}/ports/{port}', { ...init, params }),
    );
  }

  /** Makes a token with which requests reach a port that is not public. */
  async createToken(
    token: CreatePortToken,
    options: CreatingCallOptions = {},
  ): Promise<CreatedPortToken> {
    const params = { path: { sid: this.#sid } };
    const { data } = await this.#http.call({ retry: 'keyed' }, options, (client, init) =>
      client.POST('/api/sandboxes/{sid}/port-tokens', { ...init, params, body: token }),
    );
    return data;
  }

  /** Those that have not expired, oldest first. */
  tokens({ limit = 100, ...options }: ListOptions = {}): Pages<PortToken> {
    return new Pages(async (cursor) => {
      const query = { limit, ...(cursor === undefined ? {} : { cursor }) };
      const params = { path: { sid: this.#sid }, query };
      const { data, nextCursor } = await this.#http.call(READ, options, (client, init) =>
        client.GET('/api/sandboxes/{sid}/port-tokens', { ...init, params }),
      );
      return { items: data.tokens, nextCursor };
    });
  }

  /** Without the token itself, which only its creation shows. @throws NotFoundError */
  async token(tokenId: string, options: CallOptions = {}): Promise<PortToken> {
    const params = { path: { sid: this.#sid, tokenId } };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.GET('/api/sandboxes/{sid}/port-tokens/{tokenId}', { ...init, params }),
    );
    return data;
  }

  /** From now on it opens nothing. */
  async deleteToken(tokenId: string, options: CallOptions = {}): Promise<void> {
    const params = { path: { sid: this.#sid, tokenId } };
    await this.#http.call(DELETION, options, (client, init) =>
      client.DELETE('/api/sandboxes/{sid}/port-tokens/{tokenId}', { ...init, params }),
    );
  }
}
