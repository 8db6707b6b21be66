import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import autocannon from 'autocannon';
import { paths } from '../agent/config.ts';
import { MountFlag, native } from '../agent/native/native.ts';
import { CAPABILITIES, execBundle } from '../agent/runtimes/container/bundle.ts';
import { detectCgroups } from '../agent/runtimes/container/cgroup.ts';
import { readSeccomp } from '../agent/runtimes/container/seccomp.ts';
import type { ApiClient } from '../test/helpers/api.ts';
import { Daemon } from '../test/helpers/daemon.ts';
import { freePorts } from '../test/helpers/ports.ts';
import { Stack } from '../test/helpers/stack.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { alternate, printComparison } from './statistics.ts';

const GiB = 1024 ** 3;
const EXEC_ROUNDS = 100;
const LOAD_ROUNDS = 6;
const LOAD_SECONDS = 3;
const LOAD_CONNECTIONS = 32;

interface BareRunc {
  run(): Promise<void>;
  dispose(): Promise<void>;
}

/** `runc run` of the very bundle that the agent uses, with the command as its first process. */
async function prepareBareRunc(stack: Stack, diskId: string): Promise<BareRunc> {
  const directory = join(stack.directory, 'bare');
  const [root, upper, work] = ['root', 'upper', 'work'].map((name) => join(directory, name));
  for (const path of [root, upper, work]) await mkdir(path ?? '', { recursive: true });
  const layers = `lowerdir=${stack.environment['DEFAULT_IMAGE_DIR']},upperdir=${upper},workdir=${work}`;
  await native.mount('overlay', root ?? '', 'overlay', MountFlag.nosuid | MountFlag.nodev, layers);
  const { controllers } = await detectCgroups();
  const bundle = execBundle({
    rootPath: root ?? '',
    initPath: '/bin/true',
    mountPath: paths.mount(stack.environment['AGENT_DATA_DIR'] ?? '', diskId),
    cgroupPath: `${stack.environment['AGENT_CGROUP']}/bare`,
    controllers,
    limits: { memoryBytes: GiB, processes: 512, cpus: 2, scratchBytes: GiB / 2 },
    seccomp: await readSeccomp('/usr/share/containers/seccomp.json', CAPABILITIES),
  });
  const process = {
    ...(bundle['process'] as object),
    args: ['bash', '-c', 'true'],
    cwd: '/mnt/service',
  };
  await writeFile(join(directory, 'config.json'), JSON.stringify({ ...bundle, process }));
  return {
    async run() {
      const args = ['--root', join(directory, 'runc'), 'run', '--bundle', directory, 'bare'];
      const [code] = (await once(spawn('runc', args, { stdio: 'ignore' }), 'exit')) as [number];
      if (code !== 0) throw new Error(`runc ended with ${code}`);
    },
    async dispose() {
      await native.unmount(root ?? '', 0);
      await rm(directory, { recursive: true });
    },
  };
}

async function benchRun(stack: Stack, api: ApiClient, diskId: string): Promise<void> {
  const url = `${api.baseUrl}/api/disks/${diskId}/exec`;
  const headers = { authorization: `Bearer ${api.key}`, 'content-type': 'application/json' };
  const phases = { queueMs: 0, executeMs: 0 };
  const exec = async (): Promise<void> => {
    const response = await fetch(url, { method: 'POST', headers, body: '{"command":"true"}' });
    const body = (await response.json()) as {
      success: boolean;
      data: { timing: { queueMs: number; executeMs: number } };
    };
    if (!body.success) throw new Error(JSON.stringify(body));
    phases.queueMs += body.data.timing.queueMs;
    phases.executeMs += body.data.timing.executeMs;
  };
  await exec(); // Attaches the disk, which the baseline mounts too.
  const bare = await prepareBareRunc(stack, diskId);
  try {
    await alternate(5, exec, () => bare.run());
    const times = await alternate(EXEC_ROUNDS, exec, () => bare.run());
    printComparison(
      `exec of \`true\`, one at a time, ${EXEC_ROUNDS} alternating rounds`,
      times,
      { ours: 'HTTP exec', baseline: 'bare runc run' },
      { unit: 'ms', target: '≤ 1.3' },
    );
  } finally {
    await bare.dispose();
  }
}

/** Requests per second of one GET under load. */
async function load(url: string, key: string): Promise<number> {
  const result = await autocannon({
    url,
    headers: { authorization: `Bearer ${key}` },
    connections: LOAD_CONNECTIONS,
    duration: LOAD_SECONDS,
  });
  if (result.non2xx > 0 || result.errors > 0) throw new Error(`${url}: failures under load`);
  return result.requests.average;
}

async function benchRead(stack: Stack, api: ApiClient, diskId: string): Promise<void> {
  const [port = 0] = await freePorts(1);
  const client = await stack.redisClient();
  const [account = ''] = (await client.keys(`*:disk:${diskId}`)).map(
    (key) => key.split(/[{}]/u)[1],
  );
  const bare = new Daemon(
    'bare-koa',
    [process.execPath, new URL('bare-koa.ts', import.meta.url).pathname],
    {
      ...stack.environment,
      BARE_PORT: String(port),
      BARE_ACCOUNT: account,
      BARE_DISK: diskId,
      BARE_KEY: api.key,
      NODE_ENV: 'production',
    },
    join(stack.directory, 'bare-koa.log'),
  );
  bare.start();
  const bareUrl = `http://127.0.0.1:${port}/`;
  try {
    await waitFor('bare Koa', async () => (await fetch(bareUrl).catch(() => undefined))?.ok);
    const url = `${api.baseUrl}/api/disks/${diskId}`;
    await load(url, api.key);
    await load(bareUrl, api.key);
    const rates = { ours: [] as number[], baseline: [] as number[] };
    for (let round = 0; round < LOAD_ROUNDS; round += 1) {
      rates.ours.push(await load(url, api.key));
      rates.baseline.push(await load(bareUrl, api.key));
    }
    printComparison(
      `GET /api/disks/{id}, ${LOAD_CONNECTIONS} connections`,
      rates,
      { ours: 'control', baseline: 'bare Koa, same Redis reads' },
      { unit: 'requests/s', target: '≥ 0.6' },
    );
  } finally {
    await bare.stop();
  }
}

/** `npm run bench -- exec` */
export async function benchExec(): Promise<void> {
  const stack = await Stack.start({ DISK_SIZE_BYTES: String(GiB), LOG_LEVEL: 'info' });
  try {
    const api = await stack.newClient();
    const { id } = await api.data<{ id: string }>('POST', '/api/disks', { name: 'bench' });
    await benchRun(stack, api, id);
    await benchRead(stack, api, id);
  } finally {
    await stack.stop();
  }
}
