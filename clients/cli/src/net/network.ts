import type { BerthOptions } from '@berth/sdk';

/** How requests are made, and process connections opened. */
export type Network = Pick<BerthOptions, 'fetch' | 'WebSocket'>;

/**
 * Whether Node is told to go through the proxies that the environment names, which only its own
 * classes do.
 */
const usesProxies = ({ NODE_USE_ENV_PROXY, NODE_OPTIONS = '' } = process.env): boolean =>
  NODE_USE_ENV_PROXY === '1' ||
  [...process.execArgv, ...NODE_OPTIONS.split(' ')].includes('--use-env-proxy');

/**
 * Loads the classes that start fastest and behave like the runtime's own.
 * @param hasSessions whether the command opens process connections
 */
export async function loadNetwork(hasSessions: boolean): Promise<Network> {
  if (usesProxies()) return {};
  const { nodeFetch } = await import('./node-fetch.ts');
  if (!hasSessions) return { fetch: nodeFetch };
  const { NodeSocket } = await import('./node-socket.ts');
  return { fetch: nodeFetch, WebSocket: NodeSocket };
}
