/*
 * A host is killed at each step of linking, copying and removing the images that its machines stand
 * on.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { findBase, giveBase, readBase } from '../../../../../agent/machines/qemu/disk/disk-base.ts';
import { baseLinkOf, DiskBases } from '../../../../../agent/machines/qemu/disk/disk-bases.ts';
import { readOptional } from '../../../../../agent/system/read-optional.ts';
import { temporaryDirectory } from '../../../../helpers/temporary.ts';

const PROGRAM = new URL('../../../../fixtures/base-host.ts', import.meta.url).pathname;
const imageOf = (text: string): string => text.padEnd(4096);
const OWN = imageOf('this host');
const OTHER = imageOf('another');

/** A storage on which another host has released a machine, and left a copy that nobody needs. */
async function newStorage() {
  const storage = await temporaryDirectory();
  const at = (name: string): string => join(storage.path, name);
  for (const name of ['bases', 'released', 'gone']) await mkdir(at(name));
  for (const [name, text] of Object.entries({ own: OWN, other: OTHER, third: imageOf('nobody') }))
    await writeFile(at(name), text);
  const bases = new DiskBases(at('bases'), 'host-2');
  await giveBase(at('released'), at('other'), { rootDisk: at('other'), bases });
  await giveBase(at('gone'), at('third'), { rootDisk: at('third'), bases });
  await rm(at('gone'), { recursive: true });
  return Object.assign(storage, { at, bases });
}

type Storage = Awaited<ReturnType<typeof newStorage>>;

/** @returns the points that it reached, in order */
async function run({ at }: Storage, step: string, armed: string): Promise<string[]> {
  const file = at('failpoint');
  await writeFile(file, armed);
  await rm(`${file}.reached`, { force: true });
  const env = { ...process.env, FAILPOINTS: file };
  const child = spawn(process.execPath, [PROGRAM, at(''), at('own'), step], {
    ...{ env, stdio: 'inherit' },
  });
  const [code, signal] = (await once(child, 'exit')) as [number | null, string | null];
  if (armed === '' ? code !== 0 : signal !== 'SIGKILL')
    throw new Error(`${step} ended with ${code ?? signal} at '${armed}'`);
  return ((await readOptional(`${file}.reached`)) ?? '').split('\n').filter(Boolean);
}

const CONTENTS = {
  ...{ made: OWN, 'copy of made': OWN },
  ...{ released: OTHER, taken: OTHER, 'copy of taken': OTHER },
};

/** Every machine whose disk could have been begun has a link to the image that it began with. */
async function checkMachines(t: ExecutionContext, { at }: Storage, when: string): Promise<void> {
  for (const [name, contents] of Object.entries(CONTENTS)) {
    const base = await readBase(at(name));
    if (base === undefined) continue;
    const link = baseLinkOf(at(name), base.copy ?? '');
    t.is(await readFile(link, 'utf8'), contents, `${name}, ${when}`);
    const found = await findBase(at(name), { rootDisk: '/nowhere' });
    t.is(await readFile(found.path, 'utf8'), contents, `${name}, ${when}`);
  }
}

const STEPS = ['make', 'take', 'copy', 'evict'] as const;

for (const [index, step] of STEPS.entries())
  test(`a host killed anywhere in '${step}' leaves each machine its image, and no copy too many`, async (t) => {
    t.timeout(300_000);
    const prepared = async (): Promise<Storage> => {
      const storage = await newStorage();
      for (const former of STEPS.slice(0, index)) await run(storage, former, '');
      return storage;
    };
    await using sample = await prepared();
    const points = new Set(await run(sample, step, ''));
    t.true(points.size >= 2);
    for (const point of points) {
      await using storage = await prepared();
      await run(storage, step, point);
      await checkMachines(t, storage, point);
      for (const rest of STEPS.slice(index)) await run(storage, rest, '');
      await checkMachines(t, storage, `after ${point}`);
      t.is((await readdir(storage.at('bases'))).length, 2, 'its own image, and the other host’s');
      t.deepEqual(await storage.bases.unused(), []);
    }
  });
