import { once } from 'node:events';
import type { Server } from 'node:net';
import { isIPv4 } from 'node:net';
import { native } from '../native/native.ts';
import { spawnLeashed } from '../system/spawn.ts';
import { started } from '../system/started.ts';
import { loopbackForwarder, registryProxy, type Traffic } from './registry-proxy.ts';
import type { RegistryRules } from './registry-rules.ts';

const LOOPBACK = '127.0.0.1';

/** A network namespace with nothing in it but a way to registries. It ends with the agent. */
export interface PullNetwork {
  /** The namespace's file. */
  readonly namespace: string;
  /** Address of the proxy, as seen inside. */
  readonly proxyUrl: string;
  close(): void;
}

/** Opens the network of one build. @param traffic hears of all that goes through it */
export async function openPullNetwork(
  rules: RegistryRules,
  traffic: Traffic,
): Promise<PullNetwork> {
  // The process has the namespace, which is gone with it.
  const hold = ['--net', '--', 'sh', '-c', 'ip link set lo up && echo && exec cat'];
  const holder = await started(
    spawnLeashed('unshare', hold, { stdio: ['pipe', 'pipe', 'ignore'], cwd: '/' }),
  );
  const servers: Server[] = [];
  const close = (): void => {
    holder.kill('SIGKILL');
    for (const server of servers) {
      server.close();
      if ('closeAllConnections' in server) (server.closeAllConnections as () => void)();
    }
  };
  try {
    const ended = once(holder, 'exit').then(() =>
      Promise.reject(new Error('no network namespace')),
    );
    ended.catch(() => undefined);
    if (holder.stdout !== null) await Promise.race([once(holder.stdout, 'data'), ended]);
    const namespace = `/proc/${holder.pid}/ns/net`;
    const listen = async (server: Server, address: string, port: number): Promise<void> => {
      const fd = await native.listenInNamespace(namespace, address, port);
      servers.push(server);
      server.listen({ fd });
      await once(server, 'listening');
    };
    for (const registry of rules.onLoopback) {
      const address = isIPv4(registry.host) ? registry.host : LOOPBACK;
      await listen(
        loopbackForwarder({ ...registry, host: address }, traffic),
        address,
        registry.port,
      );
    }
    const proxy = registryProxy(rules, traffic);
    await listen(proxy, LOOPBACK, 0);
    const bound = proxy.address();
    const port = typeof bound === 'object' && bound !== null ? bound.port : 0;
    return { namespace, proxyUrl: `http://${LOOPBACK}:${port}`, close };
  } catch (error) {
    close();
    throw error;
  }
}
