/* Which templates a host evicts while its machines are paused, resumed and forked. */
import { mkdir, readdir, rename, rm, symlink, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { evictTemplates } from '../../../../../agent/machines/qemu/memory/template-eviction.ts';
import { Template, TemplateError } from '../../../../../agent/machines/qemu/memory/template.ts';
import {
  recordTemplate,
  templatesInUse,
} from '../../../../../agent/machines/qemu/memory/templates-in-use.ts';
import { machinePaths } from '../../../../../agent/machines/qemu/process/machine-directory.ts';
import { temporaryDirectory } from '../../../../helpers/temporary.ts';

const COUNT = 11;
const keyOf = (index: number): string => index.toString(16).padStart(64, '0');

/** A host with templates, the first of which is the oldest, and one machine. */
async function newHost() {
  const home = await temporaryDirectory();
  const directory = join(home.path, 'templates');
  const machines = join(home.path, 'machines');
  const paths = machinePaths(join(machines, 'machine'));
  for (let index = 1; index <= COUNT; index += 1) {
    await mkdir(join(directory, keyOf(index)), { recursive: true });
    await utimes(join(directory, keyOf(index)), index, index);
  }
  const pause = async (key: string): Promise<void> => {
    await mkdir(paths.checkpoint, { recursive: true });
    const marker = { version: 1, id: crypto.randomUUID(), template: key, changedPages: 0 };
    const text = JSON.stringify({ ...marker, devicesHash: '0'.repeat(64) });
    await writeFile(join(paths.checkpoint, 'checkpoint.json'), text);
    await rm(paths.run, { recursive: true, force: true });
  };
  const resume = async (key: string): Promise<void> => {
    await mkdir(paths.run, { recursive: true });
    await recordTemplate(paths.run, { key, contents: 'any' });
    await rm(paths.checkpoint, { recursive: true, force: true });
  };
  const left = async (): Promise<string[]> => (await readdir(directory)).toSorted();
  return Object.assign(home, { directory, machines, paths, pause, resume, left });
}

const from = (first: number): string[] =>
  Array.from({ length: COUNT - first + 1 }, (_, index) => keyOf(first + index));

test('the oldest templates go that no machine needs', async (t) => {
  await using host = await newHost();
  const { directory, machines } = host;
  await host.pause(keyOf(2));
  const neededKeys = () => templatesInUse(machines);
  await evictTemplates({ directory, neededKeys, isOpen: () => false });
  t.deepEqual(await host.left(), [keyOf(2), ...from(4)].toSorted());
  await host.resume(keyOf(1));
  await mkdir(join(directory, keyOf(1)));
  await utimes(join(directory, keyOf(1)), 1, 1);
  await evictTemplates({ directory, neededKeys, isOpen: () => false });
  t.true((await host.left()).includes(keyOf(1)), 'a machine that runs from it is recorded');
});

test('a template stays whose machine is resumed, or paused, while the host looks', async (t) => {
  for (const isMissed of [true, false]) {
    await using host = await newHost();
    const { directory, machines } = host;
    const open = new Set<string>();
    const neededKeys = async (): Promise<ReadonlySet<string>> => {
      const seen = isMissed ? new Set<string>() : await templatesInUse(machines);
      open.add(keyOf(1)); // A resume opens it before the checkpoint goes away.
      await host.resume(keyOf(1));
      return seen;
    };
    await host.pause(keyOf(1));
    await evictTemplates({ directory, neededKeys, isOpen: (key) => open.has(key) });
    t.deepEqual(await host.left(), [keyOf(1), ...from(4)].toSorted());
  }
});

test('a template that is opened while others are removed stays', async (t) => {
  await using host = await newHost();
  const { directory } = host;
  const isOpen = (key: string): boolean =>
    // The first removal has begun: by now a machine of the second is being resumed.
    key === keyOf(2) && asked++ > 0;
  let asked = 0;
  await evictTemplates({ directory, neededKeys: async () => new Set(), isOpen });
  t.deepEqual(await host.left(), [keyOf(2), ...from(4)].toSorted());
});

test('nothing is evicted while a machine on the storage cannot be read', async (t) => {
  await using host = await newHost();
  const { directory, machines, paths } = host;
  await host.pause(keyOf(1));
  const marker = join(paths.checkpoint, 'checkpoint.json');
  await rename(marker, `${marker}.aside`);
  await symlink(marker, marker); // Reading it fails, with ELOOP.
  const neededKeys = () => templatesInUse(machines);
  await t.throwsAsync(evictTemplates({ directory, neededKeys, isOpen: () => false }));
  t.is((await host.left()).length, COUNT);
});

test('a template that cannot be read now is not taken for a damaged one', async (t) => {
  await using host = await newHost();
  const template = join(host.directory, keyOf(1));
  const missing = Template.open(template, keyOf(1));
  await t.throwsAsync(missing, { instanceOf: TemplateError });
  const manifest = join(template, 'template.json');
  await symlink(manifest, manifest);
  const unread = await t.throwsAsync(Template.open(template, keyOf(1)), { code: 'ELOOP' });
  t.false(unread instanceof TemplateError);
});
