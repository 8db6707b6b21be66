import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { copyFile, open, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import autocannon from 'autocannon';
import { Daemon } from '../test/helpers/daemon.ts';
import { createDisk } from '../test/helpers/disks.ts';
import { diskContents, peakMemoryBytes } from '../test/helpers/host.ts';
import { ObjectClient, s3UrlOf } from '../test/helpers/objects.ts';
import { freePorts } from '../test/helpers/ports.ts';
import { Stack } from '../test/helpers/stack.ts';
import { type FileServer, serving, startNginx } from './nginx.ts';
import { alternate, printComparison, printFigures, printRows, timed } from './statistics.ts';
import { GiB, MiB } from '../shared/units.ts';

const LARGE_BYTES = 256 * MiB;
const ROUNDS = 10;
const LOAD_ROUNDS = 8;
const LOAD_SECONDS = 2;
const CONNECTIONS = 32;
/** Rounds until the JIT compiler has optimised what is called often. */
const LOAD_WARM_UP_ROUNDS = 4;

const runProgram = promisify(execFile);

interface Bench {
  readonly stack: Stack;
  readonly key: string;
  /** URL of the disk in the object API, and the directory of its files. */
  readonly url: string;
  readonly contents: string;
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

async function benchGet(bench: Bench): Promise<void> {
  const { stack, url, contents } = bench;
  await using nginx = await startNginx(contents, join(stack.directory, 'nginx'));
  const ours = () => signedCurl(bench, `${url}/large`);
  const baseline = () => curl(`${nginx.url}/large`);
  await alternate(2, ours, baseline);
  printComparison(
    `GET of 256 MiB with curl, ${ROUNDS} alternating rounds`,
    // Rates instead of times, so that more is better in every comparison of this benchmark.
    toRates(await alternate(ROUNDS, ours, baseline)),
    { ours: 'object API', baseline: 'nginx, sendfile' },
    { unit: 'MiB/s', target: '≥ 0.5' },
  );
}

const rateOf = (ms: number): number => LARGE_BYTES / MiB / (ms / 1000);

const toRates = (times: { ours: number[]; baseline: number[] }) => ({
  ours: times.ours.map(rateOf),
  baseline: times.baseline.map(rateOf),
});

/** `cp`, durable like a put: the file is synced. */
async function copyDurably(from: string, to: string): Promise<void> {
  await runProgram('cp', [from, to]);
  await runProgram('sync', [to]);
}

/** A program of this directory that serves the files of a directory. */
async function startBare(name: string, { stack, contents }: Bench): Promise<FileServer> {
  const [port = 0] = await freePorts(1);
  const program = new URL(`${name}.ts`, import.meta.url).pathname;
  const command = [process.execPath, program, contents, String(port)];
  const server = new Daemon(name, command, {}, join(stack.directory, `${name}.log`));
  return serving(server, `http://127.0.0.1:${port}`);
}

async function benchPut(bench: Bench, source: string): Promise<void> {
  const { url, contents } = bench;
  await using bare = await startBare('bare-put-server', bench);
  const places = ['put', 'copied', 'bare'].map((name) => join(contents, name));
  const [, copied = ''] = places;
  const runs = {
    ours: () => signedCurl(bench, '-T', source, `${url}/put`),
    copy: () => copyDurably(source, copied),
    bare: () => curl('-T', source, `${bare.url}/bare`),
    md5: () => runProgram('md5sum', [source]),
  };
  const rates = {
    ours: [] as number[],
    copy: [] as number[],
    bare: [] as number[],
    md5: [] as number[],
  };
  for (let round = 0; round < ROUNDS + 2; round += 1) {
    await Promise.all(places.map((path) => rm(path, { force: true })));
    await runProgram('sync', ['-f', contents]);
    for (const name of ['ours', 'copy', 'bare', 'md5'] as const) {
      const rate = rateOf(await timed(async () => void (await runs[name]())));
      if (round >= 2) rates[name].push(rate); // The first rounds warm up.
    }
  }
  const unit = 'MiB/s';
  printComparison(
    `PUT of 256 MiB with curl, ${ROUNDS} alternating rounds`,
    { ours: rates.ours, baseline: rates.copy },
    { ours: 'object API', baseline: 'cp and sync' },
    { unit, target: '≥ 0.65' },
  );
  printComparison(
    'the same by a bare Node server that takes the MD5, writes and syncs',
    { ours: rates.bare, baseline: rates.copy },
    { ours: 'bare Node server', baseline: 'cp and sync' },
    { unit, target: 'none: what Node itself leaves' },
  );
  printRows('MD5 of the same bytes alone', [{ name: 'md5sum', samples: rates.md5 }], unit);
}

/** Requests per second of one GET under load. */
async function load(url: string, headers: Record<string, string> = {}): Promise<number> {
  const result = await autocannon({
    url,
    headers,
    connections: CONNECTIONS,
    duration: LOAD_SECONDS,
  });
  if (result.non2xx > 0 || result.errors > 0) throw new Error(`${url}: failures under load`);
  return result.requests.average;
}

async function benchSmall(bench: Bench): Promise<void> {
  const { key, url, contents } = bench;
  await writeFile(join(contents, 'small'), randomBytes(4096));
  await using bare = await startBare('bare-file-server', bench);
  const ours = () => load(`${url}/small`, { authorization: key });
  const baseline = () => load(`${bare.url}/small`);
  const rates = { ours: [] as number[], baseline: [] as number[] };
  for (let round = 0; round < LOAD_WARM_UP_ROUNDS + LOAD_ROUNDS; round += 1) {
    const [one, other] = [await ours(), await baseline()];
    if (round < LOAD_WARM_UP_ROUNDS) continue;
    rates.ours.push(one);
    rates.baseline.push(other);
  }
  printComparison(
    `GET of 4 KiB, ${CONNECTIONS} connections, ${LOAD_ROUNDS} alternating rounds`,
    rates,
    { ours: 'object API', baseline: 'bare Node file server' },
    { unit: 'requests/s', target: '≥ 0.8' },
  );
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
  const sizes = [16 * MiB, GiB] as const;
  const peaks: number[] = [];
  for (const bytes of sizes) {
    const source = join(bench.stack.directory, 'source');
    await writeRandom(source, bytes);
    // Both move the same number of bytes in all, so that only the objects' size differs.
    peaks.push(await peakMiB(bench, source, GiB / bytes));
  }
  const [small = 0, large = 0] = peaks;
  printFigures(
    'resident memory of the agent, highest while 1 GiB is put and read',
    { 'in objects of 16 MiB': small, 'in objects of 1 GiB': large },
    { unit: 'MiB', digits: 0 },
  );
  const growth = { 'large / small': large / small };
  printFigures('its growth with the size of objects', growth, {
    unit: '×',
    target: '≤ 1.1',
    digits: 2,
  });
}

/** `npm run bench -- objects` */
export async function benchObjects(): Promise<void> {
  const stack = await Stack.start({ DISK_SIZE_BYTES: String(4 * GiB) });
  try {
    const api = await stack.newClient();
    const { id } = await createDisk(api);
    const s3 = new ObjectClient(s3UrlOf(stack), api.key);
    await s3.put(id, 'first', 'x'); // Attaches the disk, which the baselines use too.
    const url = `${s3.baseUrl}/${id}`;
    const bench = { stack, key: api.key, url, contents: diskContents(stack, id) };
    const source = join(stack.directory, 'large');
    await writeRandom(source, LARGE_BYTES);
    await copyFile(source, join(bench.contents, 'large'));
    await benchGet(bench);
    await benchPut(bench, source);
    await benchSmall(bench);
    await benchMemory(bench);
  } finally {
    await stack.stop();
  }
}
