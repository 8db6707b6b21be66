import assert from 'node:assert';
import { createWriteStream } from 'node:fs';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { GetObjectCommand, PutObjectCommand, S3Client } from '@aws-sdk/client-s3';
import type { ApiClient } from '../test/helpers/api.ts';
import { createBucketDisk, LOOPBACK_BUCKETS } from '../test/helpers/buckets.ts';
import { createDisk, exec } from '../test/helpers/disks.ts';
import { diskContents } from '../test/helpers/host.ts';
import { Stack } from '../test/helpers/stack.ts';
import { type DiskUser, newDiskUser } from '../test/helpers/tools.ts';
import { readFlags } from './flags.ts';
import { alternate, printComparison, printFigures, timed } from './statistics.ts';
import { GiB } from '../shared/units.ts';

const WRITTEN_FILES = 100;

interface Flags {
  readonly rounds: number;
  readonly mib: number;
  /** How many small ones. */
  readonly files: number;
}

/** A disk on a bucket and a plain one of one stack; the bucket is a disk of another stack. */
interface Bench extends Flags {
  readonly stack: Stack;
  readonly api: ApiClient;
  readonly bucket: { readonly api: ApiClient; readonly user: DiskUser };
  readonly s3: S3Client;
  readonly disk: string;
  readonly plain: string;
}

async function run(api: ApiClient, disk: string, command: string): Promise<void> {
  const { exitCode, stderr } = await exec(api, disk, command);
  assert.equal(exitCode, 0, stderr);
}

/** Makes a disk on the bucket that has all the bucket has by now. */
const freshDisk = async ({ api, bucket }: Bench): Promise<string> => {
  const { id } = await createBucketDisk(api, bucket.user);
  await run(api, id, 'true');
  return id;
};

async function benchCold(bench: Bench): Promise<void> {
  const { api, bucket, s3, stack, plain, rounds, mib } = bench;
  const make = `for i in $(seq 0 ${rounds}); do head -c ${mib}M /dev/urandom > large-$i; done; sync`;
  await run(bucket.api, bucket.user.disk, make);
  const disk = await freshDisk(bench);
  // Nobody unmounts it meanwhile.
  const using = run(api, plain, 'until [ -e end ]; do sleep 0.2; done; rm end');
  await run(api, plain, 'true');
  const directory = diskContents(stack, plain);
  const round = { ours: 0, baseline: 0 };
  const ours = () => run(api, disk, `cat large-${round.ours++} > /dev/null`);
  const baseline = async (): Promise<void> => {
    const key = `large-${round.baseline++}`;
    const reply = await s3.send(new GetObjectCommand({ Bucket: bucket.user.disk, Key: key }));
    await pipeline(
      reply.Body as Readable,
      createWriteStream(join(directory, key), { flush: true }),
    );
  };
  const rate = (ms: number): number => mib / (ms / 1000);
  const times = await alternate(rounds, ours, baseline, 1);
  printComparison(
    `cold sequential read of ${mib} MiB, ${rounds} alternating rounds`,
    { ours: times.ours.map(rate), baseline: times.baseline.map(rate) },
    { ours: 'cat by exec', baseline: "the SDK's download to a file" },
    { unit: 'MiB/s', target: '≥ 0.8' },
  );
  await run(bucket.api, bucket.user.disk, 'rm large-*');
  await run(api, plain, 'rm large-*; touch end');
  await using;
}

/** The same files on both disks, by which the one on the bucket has them all at hand. */
async function makeSmall(bench: Bench): Promise<Bench> {
  const { api, bucket, plain, mib, files } = bench;
  const script = `import os
for i in range(${files}):
  os.makedirs(f'small/{i % 100}', exist_ok=True)
  open(f'small/{i % 100}/{i}', 'w').write(f'file {i}\\n' * 100)
open('warm', 'wb').write(os.urandom(${mib} << 20))`;
  for (const [to, disk] of [
    [bucket.api, bucket.user.disk],
    [api, plain],
  ] as const) {
    await run(to, disk, `python3 - <<'END'\n${script}\nEND`);
  }
  const disk = await freshDisk(bench);
  const ms = await timed(() =>
    run(api, disk, 'find small -type f | xargs -n 50 -P 8 cat > /dev/null'),
  );
  const title = `first read of ${files} objects, 8 at a time`;
  printFigures(title, { 'xargs cat, by exec': ms }, { unit: 'ms', digits: 0 });
  return { ...bench, disk };
}

const WARM: Readonly<Record<string, string>> = {
  'sequential read of one file': 'cat warm > /dev/null',
  'read of small files': 'cat small/*/* > /dev/null',
  'metadata of all files': 'for i in 1 2 3 4 5; do find . -printf "%p %s %t\\n" > /dev/null; done',
};

const perSecond = (ms: number): number => 1000 / ms;

async function benchWarm({ api, disk, plain, rounds }: Bench): Promise<void> {
  for (const [name, command] of Object.entries(WARM)) {
    const ours = () => run(api, disk, command);
    const baseline = () => run(api, plain, command);
    const times = await alternate(2 * rounds, ours, baseline, 2);
    printComparison(
      `warm ${name}, ${2 * rounds} alternating rounds`,
      { ours: times.ours.map(perSecond), baseline: times.baseline.map(perSecond) },
      { ours: 'disk on a bucket', baseline: 'plain disk' },
      { unit: 'commands/s', target: '≥ 0.95' },
    );
  }
}

async function benchGrep({ api, disk, plain, rounds, files }: Bench): Promise<void> {
  const search = (id: string) => async (): Promise<void> => {
    const query = { directory: 'small', pattern: 'file 99999', recursive: true };
    await api.data('POST', `/api/disks/${id}/grep`, query);
  };
  printComparison(
    `warm grep over ${files} objects, ${2 * rounds} alternating rounds`,
    await alternate(2 * rounds, search(disk), search(plain), 2),
    { ours: 'disk on a bucket', baseline: 'plain disk' },
    { unit: 'ms', target: '≤ 1.1' },
  );
}

async function benchWrite({ api, disk, s3, bucket, rounds }: Bench): Promise<void> {
  const numbers = Array.from({ length: WRITTEN_FILES }, (_, i) => i + 1);
  const ours = () =>
    run(api, disk, `mkdir -p w; for i in $(seq ${WRITTEN_FILES}); do echo $RANDOM > w/$i; done`);
  const baseline = async (): Promise<void> => {
    const uploads = numbers.map((i) => {
      const at = { Bucket: bucket.user.disk, Key: `bare/${i}` };
      return new PutObjectCommand({ ...at, Body: `${Math.random()}\n` });
    });
    await Promise.all(uploads.map((upload) => s3.send(upload)));
  };
  printComparison(
    `${WRITTEN_FILES} small files, ${2 * rounds} alternating rounds`,
    await alternate(2 * rounds, ours, baseline, 2),
    { ours: 'exec, answered after upload', baseline: "the SDK's uploads, all at once" },
    { unit: 'ms', target: 'none' },
  );
}

/** `npm run bench -- bucket`: see docs/benchmarks.md. */
export async function benchBucket(args: readonly string[]): Promise<void> {
  const known = { rounds: 5, mib: 256, files: 10_000 };
  const { only, ...flags } = readFlags(args, known, ['cold', 'warm', 'grep', 'write']);
  const settings = {
    ...LOOPBACK_BUCKETS,
    DISK_SIZE_BYTES: String(16 * GiB),
    EXEC_TIMEOUT_MS: '290000',
  };
  await using stack = await Stack.start(settings);
  await using other = await Stack.start(settings);
  const [api, otherApi] = [await stack.newClient(), await other.newClient()];
  const user = await newDiskUser(other, otherApi);
  using undo = new DisposableStack();
  const s3 = new S3Client({
    endpoint: user.s3Url,
    region: 'us-east-1',
    forcePathStyle: true,
    credentials: { accessKeyId: user.identifier, secretAccessKey: user.token },
  });
  undo.defer(() => s3.destroy());
  const { id: plain } = await createDisk(api);
  await run(api, plain, 'true');
  const bench = { ...flags, stack, api, bucket: { api: otherApi, user }, s3, disk: '', plain };
  if (only.has('cold')) await benchCold(bench);
  const small = await makeSmall(bench);
  if (only.has('warm')) await benchWarm(small);
  if (only.has('grep')) await benchGrep(small);
  if (only.has('write')) await benchWrite(small);
}
