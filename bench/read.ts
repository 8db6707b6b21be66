import { join } from 'node:path';
import autocannon from 'autocannon';
import type { ApiClient } from '../test/helpers/api.ts';
import { Daemon } from '../test/helpers/daemon.ts';
import { freePorts } from '../test/helpers/ports.ts';
import type { Stack } from '../test/helpers/stack.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { printComparison } from './statistics.ts';

const ROUNDS = 6;
const SECONDS = 3;
const CONNECTIONS = 32;

/** Requests per second of one GET under load. */
async function load(url: string, key: string): Promise<number> {
  const result = await autocannon({
    url,
    headers: { authorization: `Bearer ${key}` },
    connections: CONNECTIONS,
    duration: SECONDS,
  });
  if (result.non2xx > 0 || result.errors > 0) throw new Error(`${url}: failures under load`);
  return result.requests.average;
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
    const url = `${api.baseUrl}/api/disks/${diskId}`;
    await load(url, api.key);
    await load(bare.url, api.key);
    const rates = { ours: [] as number[], baseline: [] as number[] };
    for (let round = 0; round < ROUNDS; round += 1) {
      rates.ours.push(await load(url, api.key));
      rates.baseline.push(await load(bare.url, api.key));
    }
    printComparison(
      `GET /api/disks/{id}, ${CONNECTIONS} connections`,
      rates,
      { ours: 'control', baseline: 'bare Koa, same Redis reads' },
      { unit: 'requests/s', target: '≥ 0.6' },
    );
  } finally {
    await bare.server.stop();
  }
}
