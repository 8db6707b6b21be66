import { join } from 'node:path';
import autocannon from 'autocannon';
import type { ApiClient } from '../test/helpers/api.ts';
import { Daemon } from '../test/helpers/daemon.ts';
import { freePorts } from '../test/helpers/ports.ts';
import type { Stack } from '../test/helpers/stack.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { processorMs } from './process-usage.ts';
import { printComparison } from './statistics.ts';

const ROUNDS = 6;
const SECONDS = 3;
const CONNECTIONS = 32;

interface Server {
  readonly url: string;
  readonly key: string;
  readonly pid: number;
}

interface Load {
  /** Requests per second. */
  readonly rate: number;
  /** Processor time of the server for each request. */
  readonly cpuMs: number;
}

/** A GET under load. */
async function load({ url, key, pid }: Server): Promise<Load> {
  const before = await processorMs(pid);
  const result = await autocannon({
    url,
    headers: { authorization: `Bearer ${key}` },
    connections: CONNECTIONS,
    duration: SECONDS,
  });
  if (result.non2xx > 0 || result.errors > 0) throw new Error(`${url}: failures under load`);
  const cpuMs = (await processorMs(pid)) - before;
  return { rate: result.requests.average, cpuMs: cpuMs / result.requests.total };
}

async function startBareKoa(stack: Stack, api: ApiClient, diskId: string, port: number) {
  const client = await stack.redisClient();
  const found = await client.keys(`*:disk:${diskId}`);
  const account = found[0]?.split(/[{}]/u)[1] ?? '';
  const server = new Daemon(
    'bare-koa',
    [process.execPath, new URL('bare-koa.ts', import.meta.url).pathname],
    {
      ...stack.environment,
      BARE_PORT: String(port),
      BARE_ACCOUNT: account,
      BARE_DISK: diskId,
      BARE_KEY: api.key,
    },
    join(stack.directory, 'bare-koa.log'),
  );
  server.start();
  const url = `http://127.0.0.1:${port}/`;
  await waitFor('bare Koa', async () => (await fetch(url).catch(() => undefined))?.ok);
  return { server, url };
}

/** `GET /api/disks/{id}` beside a bare Koa server that reads the same keys. */
export async function benchRead(stack: Stack, api: ApiClient, diskId: string): Promise<void> {
  const [port = 0] = await freePorts(1);
  const bare = await startBareKoa(stack, api, diskId, port);
  try {
    const { key } = api;
    const ours = { url: `${api.baseUrl}/api/disks/${diskId}`, key, pid: stack.control.pid };
    const baseline = { url: bare.url, key, pid: bare.server.pid };
    await load(ours);
    await load(baseline);
    const loads = { ours: [] as Load[], baseline: [] as Load[] };
    for (let round = 0; round < ROUNDS; round += 1) {
      loads.ours.push(await load(ours));
      loads.baseline.push(await load(baseline));
    }
    const names = { ours: 'control', baseline: 'bare Koa, same Redis reads' };
    const of = (figure: keyof Load) => ({
      ours: loads.ours.map((each) => each[figure]),
      baseline: loads.baseline.map((each) => each[figure]),
    });
    const title = `GET /api/disks/{id}, ${CONNECTIONS} connections`;
    printComparison(title, of('rate'), names, { unit: 'requests/s', target: '≥ 0.8' });
    const cost = { unit: 'ms', target: '≤ 1.25', digits: 3 };
    printComparison(`${title}: processor time of the server`, of('cpuMs'), names, cost);
  } finally {
    await bare.server.stop();
  }
}
