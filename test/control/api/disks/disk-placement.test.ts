/* Creations of disks that lose their host or their record meanwhile. */
import { access } from 'node:fs/promises';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { queues } from '../../../../shared/directory/keys.ts';
import { AppError } from '../../../../shared/errors.ts';
import { API_LIMITS } from '../../../../control/api/limits.ts';
import type { CreatedDisk } from '../../../../shared/schemas/disk.ts';
import type { ApiClient } from '../../../helpers/api.ts';
import { createDisk, diskFolder, newName } from '../../../helpers/disks.ts';
import { ScriptedHost } from '../../../helpers/scripted-host.ts';
import type { Stack } from '../../../helpers/stack.ts';
import { stackTest } from '../../../helpers/stack-test.ts';
import { waitFor } from '../../../helpers/wait.ts';

const test = stackTest();

/** More slots than the real host has, so that it is asked first. */
const PREFERRED = {
  queue: 'host',
  load: { execSlots: 100_000, storageLow: false, draining: false },
} as const;

const STOPS = new AppError('unavailable', 'the host is shutting down; try again');

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

test.serial('a host that refuses a new disk, since it stops, is replaced by another', async (t) => {
  const { api, stack } = t.context;
  const host = await ScriptedHost.link(stack, PREFERRED);
  try {
    host.refusal = STOPS;
    await checkMade(t, stack, await create(api, newName()));
    t.deepEqual(
      host.jobs.map(({ kind }) => kind),
      ['disk.create'],
    );
  } finally {
    await host.close();
  }
});

test.serial('so is a host that ends before it has taken the job', async (t) => {
  const { api, stack } = t.context;
  const redis = await stack.redisClient();
  const host = await ScriptedHost.link(stack, PREFERRED);
  const { hostId } = host;
  const waiting = `${queues.prefix(hostId)}:${queues.host(hostId)}:wait`;
  try {
    await host.stopTaking();
    const made = create(api, newName());
    await waitFor('the job', async () => (await redis.llen(waiting)) === 1);
    host.breakLink();
    await checkMade(t, stack, await made);
    t.is(await redis.llen(waiting), 0, 'it was taken back');
  } finally {
    await host.close();
  }
});

test.serial('a host that has begun is not replaced, since it may have made the disk', async (t) => {
  const { api, stack } = t.context;
  const name = newName();
  const host = await ScriptedHost.link(stack, PREFERRED);
  try {
    const begun = Promise.withResolvers<void>();
    const over = Promise.withResolvers<object>();
    host.script = async () => {
      begun.resolve();
      return over.promise;
    };
    const made = create(api, name);
    await begun.promise;
    host.breakLink();
    const { status, body } = await made;
    t.is(status, 503);
    t.is((body as { code?: string }).code, 'unavailable');
    over.resolve({});
  } finally {
    await host.close();
  }
  await checkMade(t, stack, await create(api, name));
});

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

test.serial('a new disk is offered to a few hosts only', async (t) => {
  const { api, stack } = t.context;
  const hosts = await Promise.all(
    Array.from({ length: API_LIMITS.diskPlacementsMax }, () => ScriptedHost.link(stack, PREFERRED)),
  );
  const name = newName();
  try {
    for (const host of hosts) host.refusal = STOPS;
    const { status, body } = await create(api, name);
    t.is(status, 503);
    t.is((body as { error?: string }).error, STOPS.message);
    t.true(hosts.every(({ jobs }) => jobs.length === 1));
  } finally {
    await Promise.all(hosts.map((host) => host.close()));
  }
  await createDisk(api, { name });
});
