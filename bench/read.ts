import { join } from 'node:path';
import type { ApiClient } from '../test/helpers/api.ts';
import { Daemon } from '../test/helpers/daemon.ts';
import { freePorts } from '../test/helpers/ports.ts';
import type { Stack } from '../test/helpers/stack.ts';
import { type Served, serving, underLoad } from './servers.ts';
import { processorMs } from './process-usage.ts';
import { inTurns, printComparison } from './statistics.ts';

const ROUNDS_MAX = 6;
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
async function load({ url, key, pid }: Server, seconds: number): Promise<Load> {
  const before = await processorMs(pid);
  const headers = { authorization: `Bearer ${key}` };
  const result = await underLoad({ url, headers, connections: CONNECTIONS, duration: seconds });
  const cpuMs = (await processorMs(pid)) - before;
  return { rate: result.requests.average, cpuMs: cpuMs / result.requests.total };
}

async function startBareKoa(stack: Stack, api: ApiClient, diskId: string): Promise<Served> {
  const [port = 0] = await freePorts(1);
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
  return serving(server, `http://127.0.0.1:${port}/`);
}

interface Read {
  readonly api: ApiClient;
  readonly diskId: string;
  readonly seconds: number;
  readonly rounds: number;
}

/** `GET /api/disks/{id}` beside a bare Koa server that reads the same keys. */
export async function benchRead(stack: Stack, read: Read): Promise<void> {
  const { api, diskId, seconds } = read;
  await using bare = await startBareKoa(stack, api, diskId);
  const { key } = api;
  const ours = { url: `${api.baseUrl}/api/disks/${diskId}`, key, pid: stack.control.pid };
  const baseline = { url: bare.url, key, pid: bare.pid };
  const loads = await inTurns(
    Math.min(read.rounds, ROUNDS_MAX),
    { ours: () => load(ours, seconds), baseline: () => load(baseline, seconds) },
    1,
  );
  const names = { ours: 'control', baseline: 'bare Koa, same Redis reads' };
  const of = (figure: keyof Load) => ({
    ours: loads.ours.map((each) => each[figure]),
    baseline: loads.baseline.map((each) => each[figure]),
  });
  const title = `GET /api/disks/{id}, ${CONNECTIONS} connections`;
  printComparison(title, of('rate'), names, { unit: 'requests/s', target: '≥ 0.8' });
  const cost = { unit: 'ms', target: '≤ 1.25', digits: 3 };
  printComparison(`${title}: processor time of the server`, of('cpuMs'), names, cost);
}
