/* Changes are known without a comparison of all files, however they were made. */
import { readFile } from 'node:fs/promises';
import { bucketTest, diskOf, diskOn, output } from '../helpers/bucket-stack.ts';
import { isFull } from '../helpers/full.ts';
import { exec } from '../helpers/disks.ts';

const STEPS = isFull ? 1_500 : 40;
/** Share of steps in which two commands run at once. */
const PAIRED = 0.1;

const { test } = bucketTest([]);

test('however a file is changed, it is in the bucket when the command answers', async (t) => {
  t.timeout(STEPS * 2_000);
  const { api } = t.context;
  const script = await readFile(new URL('../fixtures/random-changes.py', import.meta.url), 'utf8');
  const bucket = await t.context.newBucket();
  const disk = await diskOn(api, bucket);
  const list = "find . -type f -printf '%P\\0' | sort -z | xargs -0r sha256sum";
  const change = async (seed: number): Promise<string> => {
    const command = `python3 - ${seed} <<'END'\n${script}\nEND`;
    return (await exec(api, disk.id, command)).stdout.trim();
  };
  const first = Math.floor(Math.random() * 5e8);
  t.log(`seeds from ${first} on`);
  for (let step = 0; step < STEPS; step += 1) {
    const seeds = Math.random() < PAIRED ? [first + step, 1e9 + first + step] : [first + step];
    const done = await Promise.all(seeds.map(change));
    const found = await output(api, diskOf(bucket), list);
    const expected = await output(api, disk.id, list);
    if (found !== expected) t.is(found, expected, `seeds ${seeds.join(', ')}: ${done.join(', ')}`);
  }
  t.pass();
});
