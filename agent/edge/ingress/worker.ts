import { once } from 'node:events';
import { isMainThread, parentPort, workerData } from 'node:worker_threads';
import { runInBackground } from '../../../shared/background.ts';
import { connectDirectory } from '../../../shared/directory/redis.ts';
import { ApiKeys } from '../../../shared/directory/api-keys.ts';
import { SandboxRoutes } from '../../../shared/directory/sandbox-routes.ts';
import { toError } from '../../../shared/errors.ts';
import { createHttpMetrics } from '../../../shared/http/http-server.ts';
import { createLogger } from '../../../shared/log.ts';
import { Registry } from '../../../shared/metrics.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import { openCertificates } from '../../../shared/tls/certificates.ts';
import { Doors } from './doors.ts';
import { IngressServer } from './ingress-server.ts';
import type { IngressWorkerData, PortRef, ToMain, ToWorker } from './messages.ts';
import { RouteReads } from './route-reads.ts';
import { Upstreams } from './upstreams.ts';
import { UseCount } from './use-count.ts';

/* A thread of the ingress: it has the callers' connections, the main thread everything else. */

const COUNTS_EVERY_MS = 1_000;
const DRAIN_MS = 8_000;
const CONNECT_MS = 2_000;

const settings = workerData as IngressWorkerData;
const tell = (message: ToMain): void => parentPort?.postMessage(message, []);

async function main(): Promise<void> {
  const { hostId, region } = settings;
  const log = createLogger('agent', { hostId, region }, settings.log);
  const redis = connectDirectory(settings.redis, (error) =>
    log.warn({ err: error.message }, 'redis:error'),
  );
  // The client goes on trying; requests are answered with 503.
  await settledWithin(redis.connect(), CONNECT_MS);
  const routes = new SandboxRoutes(redis, settings.region, new ApiKeys(redis));
  const reads = new RouteReads(routes);
  const doors = new Doors(tell, await openCertificates(settings.clusterTls, log));
  const upstreams = new Upstreams(doors, settings);
  const uses = new UseCount((ref, inUse) => tell({ kind: 'use', ref, inUse }));
  const registry = new Registry();
  const metrics = createHttpMetrics(registry);
  let answers: Record<string, number> = {};

  const noteService = async ({ sandboxId, port }: PortRef, isThere: boolean): Promise<void> => {
    try {
      if (isThere) await routes.addServicePort(sandboxId, port);
      else await routes.removeServicePort(sandboxId, port);
    } catch (error) {
      log.warn({ err: toError(error) }, 'ingress:directoryAway');
    }
  };
  const { server, endUpgraded } = await IngressServer.start({
    ...{ settings, tls: await openCertificates(settings.tls, log), metrics, log, noteService },
    find: (routeId, port, token) => reads.find(routeId, port, token),
    open: (ref, mayWake) => doors.open(ref, mayWake),
    upstream: (ref) => upstreams.of(ref),
    waits: (ref) => tell({ kind: 'waits', ref }),
    use: (ref) => uses.begin(ref),
    answered: (status) => {
      answers[status] = (answers[status] ?? 0) + 1;
    },
  });
  setInterval(() => {
    server.getConnections((_error, connections) => tell({ kind: 'counts', connections, answers }));
    answers = {};
  }, COUNTS_EVERY_MS).unref();

  parentPort?.on('message', (message: ToWorker) => {
    if (message.kind === 'left') {
      upstreams.drop(message.sandboxId);
      endUpgraded(message.sandboxId);
    } else if (message.kind === 'retire') upstreams.retire(message.ref);
    else if (message.kind === 'close') runInBackground('ingress.close', close);
    else doors.receive(message);
  });
  const close = async (): Promise<void> => {
    server.close();
    server.closeIdleConnections();
    endUpgraded();
    await settledWithin(once(server, 'close'), DRAIN_MS);
    server.closeAllConnections();
    upstreams.close();
    redis.disconnect();
    log.flush();
    tell({ kind: 'closed' });
    parentPort?.close();
  };
  tell({ kind: 'listening' });
}

if (!isMainThread) await main();
