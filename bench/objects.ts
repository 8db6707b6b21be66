import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { copyFile, open, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type autocannon from 'autocannon';
import { Daemon } from '../test/helpers/daemon.ts';
import { createDisk } from '../test/helpers/disks.ts';
import { diskContents, peakMemoryBytes } from '../test/helpers/host.ts';
import { ObjectClient, s3UrlOf } from '../test/helpers/objects.ts';
import { freePorts } from '../test/helpers/ports.ts';
import { Stack } from '../test/helpers/stack.ts';
import { readFlags } from './flags.ts';
import { type Served, serving, startNginx, underLoad } from './servers.ts';
import { inTurns, printComparison, printFigures, printRows, timed } from './statistics.ts';
import { GiB, MiB } from '../shared/units.ts';

const CONNECTIONS = 32;
const LOAD_ROUNDS_MAX = 8;
/** Rounds until the JIT compiler has optimised what is called often. */
const LOAD_WARM_UP = 4;

const runProgram = promisify(execFile);

interface Bench {
  readonly stack: Stack;
  readonly key: string;
  /** URL of the disk in the object API, and the directory of its files. */
  readonly url: string;
  readonly contents: string;
  readonly rounds: number;
  readonly seconds: number;
  readonly mib: number;
}

const curl = async (...args: string[]): Promise<void> => {
  await runProgram('curl', ['-fsS', '-o', '/dev/null', ...args]);
};

const signedCurl = ({ key }: Bench, ...args: string[]): Promise<void> =>
  curl('-H', `authorization: ${key}`, ...args);

/** A file of random bytes, made piece by piece. */
async function writeRandom(path: string, bytes: number): Promise<void> {
  const piece = randomBytes(16 * MiB);
  await using file = await open(path, 'w');
  for (let at = 0; at < bytes; at += piece.length) await file.write(piece, 0, piece.length, at);
}

/** Rates instead of times, so that more is better in every comparison of this benchmark. */
const rateOf = async ({ mib }: Bench, run: () => Promise<unknown>): Promise<number> =>
  mib / ((await timed(run)) / 1000);

async function benchGet(bench: Bench): Promise<void> {
  const { stack, url, contents, rounds, mib } = bench;
  await using nginx = await startNginx(contents, join(stack.directory, 'nginx'));
  await copyFile(join(stack.directory, 'large'), join(contents, 'large'));
  const measurements = {
    ours: () => rateOf(bench, () => signedCurl(bench, `${url}/large`)),
    baseline: () => rateOf(bench, () => curl(`${nginx.url}/large`)),
  };
  printComparison(
    `GET of ${mib} MiB with curl, ${rounds} alternating rounds`,
    await inTurns(rounds, measurements, 2),
    { ours: 'object API', baseline: 'nginx, sendfile' },
    { unit: 'MiB/s', target: '≥ 0.5' },
  );
}

/** `cp`, durable like a put: the file is synced. */
async function copyDurably(from: string, to: string): Promise<void> {
  await runProgram('cp', [from, to]);
  await runProgram('sync', [to]);
}

async function startBare({ stack, contents }: Bench, log: string): Promise<Served> {
  const [port = 0] = await freePorts(1);
  const program = new URL('bare-file-server.ts', import.meta.url).pathname;
  const command = [process.execPath, program, contents, String(port)];
  const server = new Daemon('bare file server', command, {}, join(stack.directory, log));
  return serving(server, `http://127.0.0.1:${port}`);
}

async function benchPut(bench: Bench): Promise<void> {
  const { stack, url, contents, rounds, mib } = bench;
  await using bare = await startBare(bench, 'bare-put.log');
  const source = join(stack.directory, 'large');
  const places = ['put', 'copied', 'bare'].map((name) => join(contents, name));
  const [, copied = ''] = places;
  const rates = await inTurns(
    rounds,
    {
      async ours() {
        await Promise.all(places.map((path) => rm(path, { force: true })));
        await runProgram('sync', ['-f', contents]);
        return rateOf(bench, () => signedCurl(bench, '-T', source, `${url}/put`));
      },
      baseline: () => rateOf(bench, () => copyDurably(source, copied)),
      bare: () => rateOf(bench, () => curl('-T', source, `${bare.url}/bare`)),
      md5: () => rateOf(bench, () => runProgram('md5sum', [source])),
    },
    2,
  );
  const unit = 'MiB/s';
  printComparison(
    `PUT of ${mib} MiB with curl, ${rounds} alternating rounds`,
    rates,
    { ours: 'object API', baseline: 'cp and sync' },
    { unit, target: '≥ 0.65' },
  );
  printComparison(
    'the same by a bare Node server that takes the MD5, writes and syncs',
    { ours: rates.bare, baseline: rates.baseline },
    { ours: 'bare Node server', baseline: 'cp and sync' },
    { unit, target: 'none: what Node itself leaves' },
  );
  printRows('MD5 of the same bytes alone', [{ name: 'md5sum', samples: rates.md5 }], unit);
}

async function benchSmall(bench: Bench): Promise<void> {
  const { key, url, contents, seconds } = bench;
  await writeFile(join(contents, 'small'), randomBytes(4096));
  await using bare = await startBare(bench, 'bare-get.log');
  const load = { connections: CONNECTIONS, duration: seconds };
  const rounds = Math.min(bench.rounds, LOAD_ROUNDS_MAX);
  const measurements = {
    ours: () => requestRate({ ...load, url: `${url}/small`, headers: { authorization: key } }),
    baseline: () => requestRate({ ...load, url: `${bare.url}/small` }),
  };
  printComparison(
    `GET of 4 KiB, ${CONNECTIONS} connections, ${rounds} alternating rounds`,
    await inTurns(rounds, measurements, Math.min(rounds, LOAD_WARM_UP)),
    { ours: 'object API', baseline: 'bare Node file server' },
    { unit: 'requests/s', target: '≥ 0.8' },
  );
}

/** Requests per second. */
async function requestRate(options: autocannon.Options): Promise<number> {
  return (await underLoad(options)).requests.average;
}

/** The agent's peak memory while an object of this size is put and read. */
async function peakMiB(bench: Bench, source: string, times: number): Promise<number> {
  const { pid } = bench.stack.agent;
  await writeFile(`/proc/${pid}/clear_refs`, '5'); // Forgets the former peak (proc(5)).
  for (let round = 0; round < times; round += 1) {
    await signedCurl(bench, '-T', source, `${bench.url}/memory`);
    await signedCurl(bench, `${bench.url}/memory`);
  }
  return (await peakMemoryBytes(pid)) / MiB;
}

async function benchMemory(bench: Bench): Promise<void> {
  const [smallMib, largeMib] = [Math.ceil(bench.mib / 16), bench.mib * 4];
  const peakOf = async (mib: number): Promise<number> => {
    const source = join(bench.stack.directory, 'source');
    await writeRandom(source, mib * MiB);
    // Both move the same number of bytes in all, so that only the objects' size differs.
    return peakMiB(bench, source, Math.ceil(largeMib / mib));
  };
  const [small, large] = [await peakOf(smallMib), await peakOf(largeMib)];
  printFigures(
    `resident memory of the agent, highest while ${largeMib} MiB are put and read`,
    { [`in objects of ${smallMib} MiB`]: small, [`in objects of ${largeMib} MiB`]: large },
    { unit: 'MiB', digits: 0 },
  );
  const growth = { 'large / small': large / small };
  const options = { unit: '×', target: '≤ 1.1', digits: 2 };
  printFigures('its growth with the size of objects', growth, options);
}

/** `npm run bench -- objects`: see docs/benchmarks.md. */
export async function benchObjects(args: readonly string[]): Promise<void> {
  const known = { rounds: 10, seconds: 2, mib: 256 };
  const { only, ...flags } = readFlags(args, known, ['get', 'put', 'small', 'memory']);
  await using stack = await Stack.start({ DISK_SIZE_BYTES: String(4 * GiB) });
  const api = await stack.newClient();
  const { id } = await createDisk(api);
  const s3 = new ObjectClient(s3UrlOf(stack), api.key);
  await s3.put(id, 'first', 'x'); // Attaches the disk, which the baselines use too.
  const contents = diskContents(stack, id);
  const bench = { ...flags, stack, key: api.key, url: `${s3.baseUrl}/${id}`, contents };
  await writeRandom(join(stack.directory, 'large'), flags.mib * MiB);
  if (only.has('get')) await benchGet(bench);
  if (only.has('put')) await benchPut(bench);
  if (only.has('small')) await benchSmall(bench);
  if (only.has('memory')) await benchMemory(bench);
}
