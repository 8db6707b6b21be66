import assert from 'node:assert';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { parseArgs, promisify } from 'node:util';
import { COMMANDS } from '../clients/cli/src/commands/index.ts';
import type { ApiClient } from '../test/helpers/api.ts';
import { exec } from '../test/helpers/disks.ts';
import { containerSettings, createSandbox } from '../test/helpers/sandboxes.ts';
import { Stack } from '../test/helpers/stack.ts';
import { newDiskUser, Tools } from '../test/helpers/tools.ts';
import { alternate, printComparison, printRows, timed } from './statistics.ts';

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

/** Start-up of the program, and of every group of commands. */
async function benchStart(berth: Run, rounds: number): Promise<void> {
  const node = silent(runner(process.execPath, [], {}), '-e', '0');
  const words = [['--version'], ['--help'], ...COMMANDS.map(({ name }) => [name, '--help'])];
  for (const line of words) {
    const ours = silent(berth, ...line);
    await alternate(2, ours, node); // Fills the compile cache.
    const times = await alternate(rounds, ours, node);
    const names = { ours: `berth ${line.join(' ')}`, baseline: 'node -e 0' };
    printComparison('start-up', times, names, { unit: 'ms', target: '<= 2' });
  }
}

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

/**
 * A program's run and a run of it that ends at its first call: the difference is what came after
 * start-up.
 */
interface Measured {
  readonly name: string;
  readonly whole: () => Promise<void>;
  readonly begun: () => Promise<void>;
}

/** Every round makes all runs once, so that a busy minute is in all of them. */
async function compareAfterStart(
  title: string,
  rounds: number,
  [ours, baseline]: readonly [Measured, Measured],
): Promise<void> {
  const samples = [ours, baseline].map(({ name }) => ({
    name,
    whole: [] as number[],
    begun: [] as number[],
  }));
  for (let round = -3; round < rounds; round += 1) {
    for (const [i, { whole, begun }] of [ours, baseline].entries()) {
      const times = [await timed(whole), await timed(begun)] as const;
      if (round < 0) continue; // Fills caches.
      samples[i]?.whole.push(times[0]);
      samples[i]?.begun.push(times[1]);
    }
  }
  const rows = samples.flatMap(({ name, whole, begun }) => [
    { name: `${name}, whole`, samples: whole },
    { name: '  of it start-up', samples: begun },
  ]);
  printRows(title, rows, 'ms');
  const after = samples.map(({ whole, begun }) => whole.map((ms, i) => ms - (begun[i] ?? 0)));
  const [times = [], others = []] = after;
  const names = { ours: ours.name, baseline: baseline.name };
  const options = { unit: 'ms', target: '<= 1.3' };
  printComparison(`${title}, after start-up`, { ours: times, baseline: others }, names, options);
}

/**
 * A command in a sandbox beside a look-up by name and an exec by one curl, and a command in a new
 * sandbox beside the same calls by one curl.
 */
async function benchRun(
  api: ApiClient,
  berthAt: (url: string) => Run,
  rounds: number,
): Promise<void> {
  const { sandbox_id: id } = await createSandbox(api, { name: 'box' });
  await using server = await refusingServer();
  const curl = runner('curl', ['-fsS'], process.env);
  const url = `${api.baseUrl}/api/sandboxes`;
  const header = ['-H', `authorization: Bearer ${api.key}`, '-H', 'content-type: application/json'];
  const post = (path: string, body: object): string[] => [
    ...['--next', '-fsS', ...header, '-d', JSON.stringify(body)],
    `${url}${path}?wait=true`,
  ];
  const refusedCurl = async (): Promise<void> => {
    await assert.rejects(curl(server.url));
  };
  const berth = (...words: string[]): Pick<Measured, 'whole' | 'begun'> => ({
    whole: silent(berthAt(api.baseUrl), 'sandbox', 'run', ...words),
    begun: async () => {
      await assert.rejects(berthAt(server.url)('sandbox', 'run', ...words));
    },
  });
  const execute = post(`/${id}/execs`, { command: 'true' });
  await compareAfterStart('a command in a running sandbox', rounds, [
    { name: 'berth sandbox run box', ...berth('box', '--', 'true') },
    {
      name: 'the same by curl',
      begun: refusedCurl,
      whole: async () => {
        const answer = await curl(...header, '-o', '/dev/null', `${url}?name=box`, ...execute);
        assert.match(answer, /"status":"completed"/u);
      },
    },
  ]);
  const size = { mem_size_mib: 256 };
  await compareAfterStart('a command in a new sandbox', Math.ceil(rounds / 2), [
    { name: 'berth sandbox run', ...berth('--memory', '256', '--', 'true') },
    {
      name: 'the same by curl',
      begun: refusedCurl,
      whole: async () => {
        const made = await curl(...post('', size).slice(2));
        const { sandbox_id: fresh = '' } = (JSON.parse(made) as { data: { sandbox_id?: string } })
          .data;
        const end = ['--next', '-fsS', ...header, '-X', 'DELETE', `${url}/${fresh}`];
        const run = post(`/${fresh}/execs`, { command: 'true' }).slice(2);
        const answer = await curl(...run, ...post(`/${fresh}/stop`, {}), ...end);
        assert.match(answer, /"status":"completed"/u);
      },
    },
  ]);
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

/**
 * `npm run bench -- cli [--rounds N] [--files N] [--only start,run,sync]`: see docs/benchmarks.md.
 */
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
