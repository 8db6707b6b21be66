/*
 * A checkpoint that cannot be read at the moment, since its storage fails, is not a damaged one: a
 * damaged checkpoint is removed, and with it the memory of a paused sandbox.
 */
import { createHash, randomUUID } from 'node:crypto';
import { mkdir, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import test from 'ava';
import {
  CheckpointError,
  hasCheckpoint,
  restoreCheckpoint,
  templateOf,
} from '../../../../../agent/machines/qemu/memory/checkpoint.ts';
import { Template } from '../../../../../agent/machines/qemu/memory/template.ts';
import { temporaryDirectory } from '../../../../helpers/temporary.ts';

const KEY = 'a'.repeat(64);
const DEVICES = 'state of the devices';

/** A checkpoint as far as it is read before anything is asked of the machine. */
async function writeCheckpoint(directory: string, template: Template): Promise<void> {
  await mkdir(directory);
  await writeFile(join(directory, 'devices'), DEVICES);
  await writeFile(join(directory, 'pages'), '');
  const devicesHash = createHash('sha256').update(DEVICES).digest('hex');
  const marker = { version: 1, id: randomUUID(), template: template.key, changedPages: 0 };
  await writeFile(join(directory, 'checkpoint.json'), JSON.stringify({ ...marker, devicesHash }));
}

/** Has every open of a file fail with an error of the file system, ELOOP. @returns ends that */
async function fail(path: string): Promise<() => Promise<void>> {
  await rename(path, `${path}-away`);
  await symlink(path, path);
  return async () => {
    await rm(path);
    await rename(`${path}-away`, path);
  };
}

for (const name of ['checkpoint.json', 'devices', 'pages'])
  test(`a checkpoint counts as damaged only when its storage can be read (${name})`, async (t) => {
    await using temporary = await temporaryDirectory();
    using template = Template.blank(KEY, 1);
    const directory = join(temporary.path, 'checkpoint');
    await writeCheckpoint(directory, template);
    const machine = { pid: process.pid, monitor: { execute: () => Promise.resolve() } };
    const restore = (): Promise<void> =>
      restoreCheckpoint(machine, new PassThrough(), { directory, template });
    const mend = await fail(join(directory, name));
    const failed = await t.throwsAsync(restore(), { code: 'ELOOP' });
    t.false(failed instanceof CheckpointError);
    if (name === 'checkpoint.json') {
      await t.throwsAsync(hasCheckpoint(directory), { code: 'ELOOP' });
      await t.throwsAsync(templateOf(directory), { code: 'ELOOP' });
    }
    await mend();
    t.true(await hasCheckpoint(directory));
    await writeFile(join(directory, 'checkpoint.json'), '{');
    t.false(await hasCheckpoint(directory));
    await t.throwsAsync(restore(), { instanceOf: CheckpointError });
    await rm(join(directory, 'checkpoint.json'));
    t.false(await hasCheckpoint(directory));
  });
