import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { access, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { DiskRecord } from '../../../../shared/directory/disk-record.ts';
import { newDiskId } from '../../../../shared/ids.ts';
import { DIRECTORY_LIMITS } from '../../../../shared/directory/limits.ts';
import type { Disk } from '../../../../shared/schemas/disk.ts';
import type { ApiClient } from '../../../helpers/api.ts';
import {
  createDisk,
  diskFolder,
  exec,
  missingDiskId,
  newName,
  readManifest,
} from '../../../helpers/disks.ts';
import { ObjectClient } from '../../../helpers/objects.ts';
import type { Stack } from '../../../helpers/stack.ts';
import { stackTest } from '../../../helpers/stack-test.ts';
import { waitFor } from '../../../helpers/wait.ts';

const runFile = promisify(execFile);

interface ListBody {
  success: boolean;
  data: Disk[];
  nextCursor?: string;
  code?: string;
}

const test = stackTest();

/** A client whose account has disks in the directory; they have no data. */
async function accountWithDisks(stack: Stack, count: number): Promise<ApiClient> {
  const { accounts, apiKeys, disks } = await stack.openDirectory();
  const account = await accounts.create(newName());
  const { token } = await apiKeys.create(account, { name: 'test' });
  const begin = Date.parse('2026-01-01T00:00:00.000Z');
  await Promise.all(
    Array.from({ length: count }, async (_, index) => {
      const record: DiskRecord = {
        id: newDiskId(),
        accountId: account.id,
        organization: account.name,
        region: 'local-test',
        name: `disk-${index}`,
        status: 'available',
        // Pairs share a moment: their ids decide.
        createdAt: new Date(begin + Math.floor(index / 2)).toISOString(),
        allowedIps: [],
        allowedOrigins: [],
        users: [],
        revision: 1,
      };
      await disks.create(record);
    }),
  );
  return stack.newClient().then((client) => client.withKey(token));
}

const list = async (api: ApiClient, query = ''): Promise<ListBody> =>
  (await api.call<ListBody>('GET', `/api/disks${query}`)).body;

/** Follows cursors to the end. */
async function pages(api: ApiClient, limit: number): Promise<Disk[][]> {
  const found: Disk[][] = [];
  let cursor: string | undefined;
  do {
    const suffix: string = cursor === undefined ? '' : `&cursor=${cursor}`;
    const page = await list(api, `?limit=${limit}${suffix}`);
    if (page.nextCursor === cursor) throw new Error('the cursor stands still');
    found.push(page.data);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return found;
}

test('a new account has no disks, and the last page has no cursor', async (t) => {
  const api = await t.context.stack.newClient();
  t.deepEqual(await list(api), { success: true, data: [] });
});

test('pages hold every disk once, oldest first', async (t) => {
  const api = await accountWithDisks(t.context.stack, 25);
  const found = await pages(api, 10);
  t.deepEqual(
    found.map((page) => page.length),
    [10, 10, 5],
  );
  const all = found.flat();
  t.is(new Set(all.map(({ id }) => id)).size, 25);
  const times = all.map(({ createdAt }) => createdAt);
  t.deepEqual(times, times.toSorted());
  t.deepEqual((await list(api)).data, all);
});

test('a page that just fits has no cursor', async (t) => {
  const api = await accountWithDisks(t.context.stack, 4);
  t.deepEqual(
    (await pages(api, 2)).map((page) => page.length),
    [2, 2],
  );
});

test('a cursor continues after a deleted disk', async (t) => {
  const { stack } = t.context;
  const api = await stack.newClient();
  for (let index = 0; index < 3; index += 1) await createDisk(api);
  const first = await list(api, '?limit=1');
  await api.data('GET', '/api/disks');
  const reply = await api.call('DELETE', `/api/disks/${first.data[0]?.id}`);
  t.is(reply.status, 200);
  const rest = await list(api, `?cursor=${first.nextCursor}`);
  t.is(rest.data.length, 2);
});

test('page sizes: 50 with a cursor alone, at most 100, up to 1000 without cursor and limit', async (t) => {
  const api = await accountWithDisks(t.context.stack, 1003);
  const first = await list(api, '?limit=1');
  t.is(first.data.length, 1);
  t.is((await list(api, `?cursor=${first.nextCursor}`)).data.length, 50);
  t.is((await list(api, '?limit=100')).data.length, 100);
  t.is((await list(api, '?limit=101')).data.length, 100);
  t.is((await list(api, `?limit=${Number.MAX_SAFE_INTEGER}`)).data.length, 100);
  const unpaged = await list(api);
  t.is(unpaged.data.length, DIRECTORY_LIMITS.unpagedListMax);
  const rest = await list(api, `?cursor=${unpaged.nextCursor}`);
  t.is(rest.data.length, 3);
  t.is(rest.nextCursor, undefined);
});

const badQuery = test.macro({
  async exec(t, query: string) {
    const { status, body } = await t.context.api.call('GET', `/api/disks?${query}`);
    t.is(status, 400);
    t.is(body.code, 'bad_request');
  },
  title: (_given, query: string) => `a list answers 400 to ?${query.slice(0, 60)}`,
});

const encoded = (text: string): string => Buffer.from(text).toString('base64url');

test(badQuery, 'limit=0');
test(badQuery, 'limit=-1');
test(badQuery, 'limit=1.5');
test(badQuery, 'limit=ten');
test(badQuery, 'limit=');
test(badQuery, 'limit=1&limit=2');
test(badQuery, 'cursor=');
test(badQuery, 'cursor=garbled');
test(badQuery, 'cursor=%00');
test(badQuery, `cursor=${'a'.repeat(513)}`);
test(badQuery, `cursor=${encoded('000000000000001')}`);
test(badQuery, `cursor=${encoded('000000000000001:dsk-1')}%3D`);
test(badQuery, `cursor=${encoded('000000000000001:a b')}`);
test(badQuery, `name=${'a'.repeat(101)}`);

test('the name filter is exact and sees only disks of the account', async (t) => {
  const { api, stack } = t.context;
  const { name, id } = await createDisk(api);
  const found = await list(api, `?name=${name}`);
  t.deepEqual(
    found.data.map((disk) => disk.id),
    [id],
  );
  t.is(found.nextCursor, undefined);
  t.deepEqual((await list(api, `?name=${name.slice(0, -1)}`)).data, []);
  t.deepEqual((await list(api, `?name=${name.toUpperCase()}`)).data, []);
  t.deepEqual((await list(await stack.newClient(), `?name=${name}`)).data, []);
});

test('get shows what create and list show', async (t) => {
  const { api } = t.context;
  const { diskId: _, ...created } = await createDisk(api, {
    allowedIps: ['10.0.0.1'],
    rootAttrs: { mode: 0o700 },
  });
  const disk = await api.data<Disk>('GET', `/api/disks/${created.id}`);
  t.deepEqual(disk, {
    ...created,
    authorizedUsers: created.authorizedUsers.map(({ token: _token, ...user }) => user),
  });
  t.deepEqual((await list(api, `?name=${created.name}`)).data, [disk]);
});

test('a disk shows the figures that were measured after a command', async (t) => {
  const { api } = t.context;
  const { id, createdAt } = await createDisk(api);
  const get = (): Promise<Disk> => api.data<Disk>('GET', `/api/disks/${id}`);
  await exec(api, id, 'true');
  const before = await waitFor('figures', async () => {
    const disk = await get();
    return disk.dataSize === undefined ? undefined : disk;
  });
  t.is(before.fsHandlerStatus, 'attached');
  t.is(before.metrics?.requests, '1');
  t.regex(before.metrics?.avgResponseTime ?? '', /^\d+ ms$/u);
  t.true((before.lastAccessed ?? '') >= createdAt);

  await exec(api, id, 'head -c 5000000 /dev/urandom > data && sync');
  const after = await waitFor('new figures', async () => {
    const disk = await get();
    return disk.metrics?.requests === '2' ? disk : undefined;
  });
  const grown = (after.dataSize ?? 0) - (before.dataSize ?? 0);
  t.true(grown >= 5_000_000 && grown < 5_500_000, `grown by ${grown}`);
  t.is(after.activeDataBytes, after.dataSize);
  t.false('totalDataBytes' in after, 'nothing measures it');
  t.true((after.lastAccessed ?? '') > (before.lastAccessed ?? ''));
});

test('object requests, downloads and searches count as uses of the disk, like commands', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  const objects = new ObjectClient(api.baseUrl, api.key);
  const usedAfter = async (requests: number): Promise<Disk> =>
    waitFor(`${requests} uses`, async () => {
      const disk = await api.data<Disk>('GET', `/api/disks/${id}`);
      return disk.metrics?.requests === String(requests) ? disk : undefined;
    });
  const body = randomBytes(3_000_000);
  t.is((await objects.call('PUT', `/${id}/object`, { body })).status, 200);
  const written = await usedAfter(1);
  t.true((written.dataSize ?? 0) >= body.length);
  t.is(written.activeDataBytes, written.dataSize);

  t.is((await objects.call('GET', `/${id}/object`)).status, 200);
  t.is((await objects.call('HEAD', `/${id}/nothing`)).status, 404);
  const read = await usedAfter(3);
  t.true((read.lastAccessed ?? '') > (written.lastAccessed ?? ''));

  const { url } = await api.data<{ url: string }>('POST', `/api/disks/${id}/share`, {
    key: 'object',
  });
  const shared = await usedAfter(4);
  t.is((await (await fetch(url)).arrayBuffer()).byteLength, body.length);
  const downloaded = await usedAfter(5);
  t.true((downloaded.lastAccessed ?? '') > (shared.lastAccessed ?? ''));
  await api.call('POST', `/api/disks/${id}/grep`, { directory: '/', pattern: 'x' });
  await usedAfter(6);
});

const calls: [name: string, method: string, suffix: string, body?: object][] = [
  ['get', 'GET', ''],
  ['delete', 'DELETE', ''],
  ['exec', 'POST', '/exec', { command: 'true' }],
  ['add user', 'POST', '/users', { type: 'token', nickname: 'n' }],
  ['remove user', 'DELETE', '/users/token?identifier=x'],
  ['get allowed IPs', 'GET', '/allowed-ips'],
  ['put allowed IPs', 'PUT', '/allowed-ips', { allowedIps: [] }],
  ['get allowed origins', 'GET', '/allowed-origins'],
  ['put allowed origins', 'PUT', '/allowed-origins', { allowedOrigins: [] }],
  ['list delegations', 'GET', '/delegations'],
  ['revoke delegation', 'POST', '/revoke-delegation', { clientId: 'c', inodeId: 1 }],
];

for (const [name, method, suffix, body] of calls) {
  test(`${name}: a malformed disk id is a bad request`, async (t) => {
    for (const id of ['dsk-1', 'DSK-0123456789ABCDEF', 'x', `${missingDiskId}0`, '..%2Fx', '%00']) {
      const reply = await t.context.api.call(method, `/api/disks/${id}${suffix}`, body);
      t.is(reply.status, 400, id);
      t.is(reply.body.code, 'bad_request');
    }
  });

  test(`${name}: another account's disk answers like a missing one and is left alone`, async (t) => {
    const { api, stack } = t.context;
    const { id } = await createDisk(await stack.newClient());
    const before = await readManifest(stack, id);
    const foreign = await api.call(method, `/api/disks/${id}${suffix}`, body);
    const missing = await api.call(method, `/api/disks/${missingDiskId}${suffix}`, body);
    t.is(foreign.status, 404);
    t.is(missing.status, 404);
    t.is(foreign.body.code, 'not_found');
    t.is(JSON.stringify(foreign.body).replaceAll(id, missingDiskId), JSON.stringify(missing.body));
    t.deepEqual(await readManifest(stack, id), before);
  });

  test(`${name}: a deleted disk is gone`, async (t) => {
    const { api } = t.context;
    const { id } = await createDisk(api);
    await api.call('DELETE', `/api/disks/${id}`);
    const reply = await api.call(method, `/api/disks/${id}${suffix}`, body);
    t.is(reply.status, 404);
  });
}

test('deletion answers success without data and leaves nothing of the disk', async (t) => {
  const { api, stack } = t.context;
  const { id, name } = await createDisk(api);
  await exec(api, id, 'echo data > file');
  const reply = await api.call('DELETE', `/api/disks/${id}`);
  t.is(reply.status, 200);
  t.deepEqual<unknown, unknown>(reply.body, { success: true });
  await t.throwsAsync(access(diskFolder(stack, id)), { code: 'ENOENT' });
  const redis = await stack.redisClient();
  // The figures of the command are written behind its answer: they must not bring the disk back.
  t.deepEqual(await redis.keys(`*${id}*`), []);
  t.deepEqual((await list(api, `?name=${name}`)).data, []);
  t.false((await list(api)).data.some((disk) => disk.id === id));
  const left = await readdir(join(stack.environment['STORAGE_DIR'] ?? '', 'disks'));
  t.false(left.includes(id));
});

test.serial(
  'a deletion that fails half-way is answered as done, and finishes by itself',
  async (t) => {
    const { api, stack } = t.context;
    const { id } = await createDisk(api);
    await exec(api, id, 'echo data > file');
    const disks = join(stack.environment['STORAGE_DIR'] ?? '', 'disks');
    await runFile('chattr', ['+i', join(disks, id, 'image.ext4')]);
    t.is((await api.call('DELETE', `/api/disks/${id}`)).status, 200);
    for (const method of ['GET', 'DELETE']) {
      t.is((await api.call(method, `/api/disks/${id}`)).status, 404, method);
    }
    const asides = async (): Promise<string[]> =>
      (await readdir(disks)).filter((name) => name.startsWith('.'));
    const [aside = ''] = await asides();
    await runFile('chattr', ['-i', join(disks, aside, 'image.ext4')]);
    const redis = await stack.redisClient();
    await waitFor(
      'the rest to be deleted',
      async () => {
        const isKnown = (await redis.keys(`*${id}*`)).length > 0;
        return !isKnown && (await asides()).length === 0;
      },
      60_000,
    );
    t.deepEqual(await redis.keys('*disk-deletions'), []);
  },
);

test.serial('a deletion that no host could do now is refused before it begins', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api);
  const { diskLeases } = await stack.openDirectory();
  const { accountId } = await readManifest(stack, id);
  const lease = await diskLeases.acquire({ accountId, diskId: id }, 'host-aaaaaaaaaaaa', 60_000);
  t.is((await api.call('DELETE', `/api/disks/${id}`)).body.code, 'unavailable');
  t.is((await api.call('GET', `/api/disks/${id}`)).status, 200, 'it is as it was');
  if (!('heldBy' in lease)) await diskLeases.release(lease);
  t.is((await api.call('DELETE', `/api/disks/${id}`)).status, 200);
});

test('a disk can be deleted while a command runs on it, which ends the command', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  const running = api.call('POST', `/api/disks/${id}/exec`, { command: 'sleep 60' });
  await waitFor('the disk to be attached', async () => {
    const disk = await api.data<Disk>('GET', `/api/disks/${id}`);
    return disk.fsHandlerStatus === 'attached';
  });
  t.is((await api.call('DELETE', `/api/disks/${id}`)).status, 200);
  t.true((await running).status >= 400);
  t.is((await api.call('GET', `/api/disks/${id}`)).status, 404);
});

test('the name of a deleted disk can be used again, for an empty disk', async (t) => {
  const { api } = t.context;
  const old = await createDisk(api);
  await exec(api, old.id, 'echo old > file');
  await api.call('DELETE', `/api/disks/${old.id}`);
  const disk = await createDisk(api, { name: old.name });
  t.not(disk.id, old.id);
  t.is((await exec(api, disk.id, 'ls -A')).stdout, '');
});
