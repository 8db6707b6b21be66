/* Work on files of any size ends with its request and takes no thread from other accounts. */
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { ObjectClient, s3UrlOf } from '../helpers/objects.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { GiB } from '../../shared/units.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  // Large enough that mke2fs chooses blocks of 4 KiB, with which files can have up to 16 TiB.
  const stack = await Stack.start({ DISK_SIZE_BYTES: String(8 * GiB) });
  Object.assign(t.context, { stack, api: await stack.newClient() });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

interface Answered {
  readonly msg: string;
  readonly operation?: string;
  readonly diskId?: string;
  readonly code?: string;
}

/** The agent's log events of one operation on a disk. */
async function answered({ stack }: Context, operation: string, disk: string): Promise<Answered[]> {
  const lines = (await stack.agent.readLog()).split('\n').filter((line) => line.startsWith('{'));
  return lines
    .map((line) => JSON.parse(line) as Answered)
    .filter((entry) => entry.operation === operation && entry.diskId === disk);
}

/** Sends a request and hangs up after a while. */
async function hangUpOnCopy(client: ObjectClient, to: string, from: string): Promise<void> {
  const headers = { authorization: client.key, 'x-amz-copy-source': from };
  const signal = AbortSignal.timeout(300);
  await fetch(`${client.baseUrl}${to}`, { method: 'PUT', headers, signal }).catch(() => undefined);
}

test('a file of 15 TiB is appended to at once, and then its disk goes at once', async (t) => {
  const { stack, api } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'truncate -s 15T sparse');
  const client = new ObjectClient(s3UrlOf(stack), api.key);
  const append = { body: 'x' };
  const reply = await client.call('PUT', `/${id}/sparse?append=true`, append);
  t.is(reply.status, 200);
  t.regex(reply.headers.get('etag') ?? '', /^"[0-9a-f]{32}-0"$/u);
  const head = await client.call('HEAD', `/${id}/sparse`);
  t.is(head.headers.get('etag'), reply.headers.get('etag'));
  t.is((await api.call('DELETE', `/api/disks/${id}`)).status, 200);
  t.false((await stack.agent.readLog()).includes('disk:unmountFailed'));
});

test('copying ends when the caller hangs up, and when the disk is deleted', async (t) => {
  const { stack, api } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'truncate -s 4G sparse; truncate -s 15T huge');
  const client = new ObjectClient(s3UrlOf(stack), api.key);
  const headers = { 'x-amz-copy-source': `/${id}/sparse` };
  await hangUpOnCopy(client, `/${id}/copy`, `/${id}/sparse`);
  const ended = async (): Promise<Answered | undefined> =>
    (await answered(t.context, 'CopyObject', id))[0];
  await waitFor('the copy to end', async () => (await ended()) !== undefined);
  t.is((await ended())?.code, 'IncompleteBody');
  t.is((await exec(api, id, 'ls')).stdout, 'huge\nsparse\n');

  const copying = client.call('PUT', `/${id}/copy`, { headers });
  const reading = client.open('GET', `/${id}/huge`);
  await reading;
  t.is((await api.call('DELETE', `/api/disks/${id}`)).status, 200);
  t.is((await copying).status, 404);
  t.false((await stack.agent.readLog()).includes('disk:unmountFailed'));
});

test('listings of one account leave the threads to the requests of another', async (t) => {
  const { stack, api } = t.context;
  const other = await stack.newClient();
  const [{ id: large }, { id: small }] = [await createDisk(api), await createDisk(other)];
  await exec(api, large, 'mkdir many; cd many; seq -f name%.0f 30000 | xargs touch');
  const mine = new ObjectClient(s3UrlOf(stack), other.key);
  await mine.put(small, 'object', 'bytes');
  const lister = new ObjectClient(s3UrlOf(stack), api.key);
  let listed = 0;
  const listings = Array.from({ length: 150 }, async () => {
    const reply = await lister.call('GET', `/${large}?list-type=2&prefix=many/&max-keys=1`);
    listed += 1;
    return reply.status;
  });
  await waitFor('the first listing', async () => listed > 0);
  for (let count = 0; count < 6; count += 1) {
    t.is((await mine.call('GET', `/${small}/object`)).text, 'bytes');
  }
  // With a single queue for all accounts, each of these would wait for every earlier listing.
  t.true(listed < listings.length, `${listed} listings came first`);
  t.deepEqual(new Set(await Promise.all(listings)), new Set([200]));
});
