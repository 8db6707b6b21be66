import assert from 'node:assert';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { parseArgs, promisify } from 'node:util';
import type { ApiClient } from '../test/helpers/api.ts';
import { exec } from '../test/helpers/disks.ts';
import { containerSettings, createSandbox } from '../test/helpers/sandboxes.ts';
import { Stack } from '../test/helpers/stack.ts';
import { newDiskUser, Tools } from '../test/helpers/tools.ts';
import { alternate, median, printComparison, printRows, timed } from './statistics.ts';

const BERTH = join(import.meta.dirname, '../clients/cli/bin/berth.js');
const FILES_IN_DIRECTORY = 100;
const JOBS = 16;

/** Runs a program to its end. @returns what it printed @throws Error unless it ended with 0 */
type Run = (...args: string[]) => Promise<string>;

const runner =
  (program: string, before: readonly string[], env: NodeJS.ProcessEnv): Run =>
  async (...args) =>
    (await promisify(execFile)(program, [...before, ...args], { env })).stdout;

const silent =
  (run: Run, ...args: string[]) =>
  async (): Promise<void> => {
    await run(...args);
  };

async function benchStart(berth: Run, rounds: number): Promise<void> {
  const node = silent(runner(process.execPath, [], {}), '-e', '0');
  for (const flag of ['--version', '--help']) {
    const ours = silent(berth, flag);
    await alternate(2, ours, node); // Fills the compile cache.
    const times = await alternate(rounds, ours, node);
    const names = { ours: `berth ${flag}`, baseline: 'node -e 0' };
    printComparison('start-up', times, names, { unit: 'ms', target: '<= 2' });
  }
}

const less = (samples: readonly number[], start: readonly number[]): number[] =>
  samples.map((ms) => ms - median(start));

/** A server that refuses every call at once: what a program needs to get there is its start-up. */
async function refusingServer(): Promise<AsyncDisposable & { readonly url: string }> {
  const server = createServer((_request, response) => {
    response.writeHead(401, { connection: 'close' }).end('{}');
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const close = async (): Promise<void> => {
    server.close();
    await once(server, 'close');
  };
  return { url: `http://127.0.0.1:${port}`, [Symbol.asyncDispose]: close };
}

/** A command in a sandbox, beside a lookup by name and an exec by one curl, each less its start-up. */
async function benchRun(
  api: ApiClient,
  berthAt: (url: string) => Run,
  rounds: number,
): Promise<void> {
  const { sandbox_id: id } = await createSandbox(api, { name: 'box' });
  const curl = runner('curl', ['-fsS'], process.env);
  const url = `${api.baseUrl}/api/sandboxes`;
  const header = ['-H', `authorization: Bearer ${api.key}`, '-H', 'content-type: application/json'];
  const body = JSON.stringify({ command: 'true' });
  const find = [...header, '-o', '/dev/null', `${url}?name=box`];
  const execute = [...header, '-d', body, `${url}/${id}/execs?wait=true`];
  const ours = silent(berthAt(api.baseUrl), 'sandbox', 'run', 'box', '--', 'true');
  const baseline = async (): Promise<void> => {
    const answer = await curl(...find, '--next', '-fsS', ...execute);
    assert.match(answer, /"status":"completed"/u);
  };
  await alternate(3, ours, baseline);
  await using server = await refusingServer();
  const refused = berthAt(server.url);
  const begun = await alternate(
    rounds,
    async () => {
      await assert.rejects(refused('sandbox', 'run', 'box', '--', 'true'));
    },
    async () => {
      await assert.rejects(curl(server.url));
    },
  );
  const whole = await alternate(rounds, ours, baseline);
  const rows = [
    { name: 'berth sandbox run, whole', samples: whole.ours },
    { name: 'of it start-up', samples: begun.ours },
    { name: 'curl, whole', samples: whole.baseline },
    { name: 'of it start-up', samples: begun.baseline },
  ];
  printRows('a command in a running sandbox', rows, 'ms');
  const times = {
    ours: less(whole.ours, begun.ours),
    baseline: less(whole.baseline, begun.baseline),
  };
  const names = { ours: 'berth sandbox run -- true', baseline: 'the same by curl' };
  printComparison('after start-up', times, names, { unit: 'ms', target: '<= 1.3' });
}

async function fill(directory: string, files: number): Promise<void> {
  for (let i = 0; i < files; i += 1) {
    const parent = join(directory, `d${Math.floor(i / FILES_IN_DIRECTORY)}`);
    if (i % FILES_IN_DIRECTORY === 0) await mkdir(parent, { recursive: true });
    await writeFile(join(parent, `f${i}`), `file ${i}\n`.repeat(1 + (i % 500)));
  }
}

async function benchSync(
  stack: Stack,
  api: ApiClient,
  berth: Run,
  { rounds, files }: { readonly rounds: number; readonly files: number },
): Promise<void> {
  const { disk, identifier, token, s3Url } = await newDiskUser(stack, api);
  const tools = await Tools.in(stack);
  await tools.output(
    ...(['rclone', 'config', 'create', 'berth', 's3', 'provider=Other'] as const),
    ...[`access_key_id=${identifier}`, `secret_access_key=${token}`, `endpoint=${s3Url}`],
    ...['force_path_style=true', 'region=us-east-1'],
  );
  const source = tools.path('source');
  await fill(source, files);
  let round = 0;
  const sync = async (): Promise<{ files: number; unchanged: number }> =>
    JSON.parse(
      await berth(
        ...['disk', 'sync', source, `${disk}:ours${round}`, '--jobs', String(JOBS), '--json'],
      ),
    ) as { files: number; unchanged: number };
  const rclone = async (): Promise<void> => {
    const transfers = [`--transfers=${JOBS}`, `--checkers=${JOBS}`];
    await tools.output('rclone', 'sync', ...transfers, source, `berth:${disk}/theirs${round}`);
  };
  const times = {
    first: { ours: [] as number[], baseline: [] as number[] },
    again: { ours: [] as number[], baseline: [] as number[] },
  };
  for (round = 0; round < rounds; round += 1) {
    times.first.ours.push(await timed(async () => assert.equal((await sync()).files, files)));
    times.first.baseline.push(await timed(rclone));
    times.again.ours.push(
      await timed(async () => {
        const { files: sent, unchanged } = await sync();
        assert.deepEqual([sent, unchanged], [0, files]);
      }),
    );
    times.again.baseline.push(await timed(rclone));
    await exec(api, disk, `rm -rf ours${round} theirs${round}`);
  }
  const names = { ours: 'berth disk sync', baseline: 'rclone sync' };
  const rates = (samples: readonly number[]): number[] => samples.map((ms) => files / (ms / 1000));
  for (const [title, { ours, baseline }] of [
    [`${files} files up`, times.first],
    ['again, nothing to transfer', times.again],
  ] as const) {
    const both = { ours: rates(ours), baseline: rates(baseline) };
    printComparison(title, both, names, { unit: 'files/s', target: '>= 0.7' });
  }
}

/** `npm run bench -- cli [--rounds N] [--files N] [--only start,run,sync]`: see docs/benchmarks.md. */
export async function benchCli(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rounds: { type: 'string', default: '30' },
      files: { type: 'string', default: '10000' },
      only: { type: 'string', default: 'start,run,sync' },
    },
  });
  const rounds = Number(values.rounds);
  const only = new Set(values.only.split(','));
  const stack = await Stack.start({ ...containerSettings(), LOG_LEVEL: 'warn' });
  try {
    const api = await stack.newClient();
    const home = { PATH: process.env['PATH'], HOME: stack.directory };
    const berthAt = (url: string): Run =>
      runner(process.execPath, [BERTH], { ...home, BERTH_URL: url, BERTH_API_KEY: api.key });
    const berth = berthAt(api.baseUrl);
    if (only.has('start')) await benchStart(berth, rounds);
    if (only.has('run')) await benchRun(api, berthAt, rounds);
    const many = { rounds: Math.ceil(rounds / 10), files: Number(values.files) };
    if (only.has('sync')) await benchSync(stack, api, berth, many);
  } finally {
    await stack.stop();
  }
}
