/* Creations of disks that lose their host or their record meanwhile. */
import { access } from 'node:fs/promises';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { AppError } from '../../shared/errors.ts';
import type { CreatedDisk } from '../../shared/schemas/disk.ts';
import type { ApiClient } from '../helpers/api.ts';
import { diskFolder, newName } from '../helpers/disks.ts';
import { ScriptedHost } from '../helpers/scripted-host.ts';
import type { Stack } from '../helpers/stack.ts';
import { stackTest } from '../helpers/stack-test.ts';

const test = stackTest();

/** More slots than the real host has, so that it is asked first. */
const PREFERRED = {
  queue: 'host',
  load: { execSlots: 100_000, storageLow: false, draining: false },
} as const;

/** Begins to create a disk. */
const create = (api: ApiClient, name: string) =>
  api.call<{ data: CreatedDisk }>('POST', '/api/disks', { name });

/** The real host has made the disk. */
async function checkMade(
  t: ExecutionContext,
  stack: Stack,
  made: Awaited<ReturnType<typeof create>>,
) {
  t.is(made.status, 201);
  t.is(made.body.data.status, 'available');
  await t.notThrowsAsync(access(join(diskFolder(stack, made.body.data.id), 'image.ext4')));
}

test.serial(
  'a new disk whose record is lost meanwhile answers 503, and can be made anew',
  async (t) => {
    const { api, stack } = t.context;
    const name = newName();
    const host = await ScriptedHost.link(stack, PREFERRED);
    try {
      host.script = () => Promise.reject(new AppError('not_found', 'the disk does not exist'));
      const { status, body } = await create(api, name);
      t.is(status, 503);
      t.is((body as { code?: string }).code, 'unavailable');
    } finally {
      await host.close();
    }
    await checkMade(t, stack, await create(api, name));
  },
);
