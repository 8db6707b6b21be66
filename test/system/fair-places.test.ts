/* Uploads and downloads that hardly move must not keep others from being served. */
import anyTest, { type TestFn } from 'ava';
import type { ClientRequest, IncomingMessage } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { ObjectClient, s3UrlOf } from '../helpers/objects.ts';
import { beginRequest, isWhole, outcomeOf } from '../helpers/raw-objects.ts';
import { codeOf, download, open, share } from '../helpers/shares.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { KiB } from '../../shared/units.ts';

interface Tenant {
  api: ApiClient;
  objects: ObjectClient;
  diskId: string;
  link: string;
}

interface Context {
  stack: Stack;
  greedy: Tenant;
  other: Tenant;
  /** Settings under which a stalled transfer is dropped soon. */
  strict: { agentUrl: string; controlUrl: string };
}

const test = (anyTest as TestFn<Context>).serial;

const PLACES = 12;
const ATTACKERS = 30;
const STALLED_MS = 2_000;

async function newTenant(stack: Stack): Promise<Tenant> {
  const api = await stack.newClient();
  const { id: diskId } = await createDisk(api);
  await exec(api, diskId, 'truncate -s 200M big; echo content > small');
  const objects = new ObjectClient(s3UrlOf(stack), api.key);
  return { api, objects, diskId, link: await share(api, diskId, 'big') };
}

test.before(async (t) => {
  const stack = await Stack.start({
    OBJECT_REQUESTS_MAX: String(PLACES),
    DOWNLOADS_MAX: String(PLACES),
  });
  const short = { TRANSFER_STALLED_MS: String(STALLED_MS), TRANSFER_BYTES_PER_SECOND_MIN: '1024' };
  const control = await stack.addControl(short);
  const agent = await stack.addAgent(short);
  await control.start();
  await agent.start();
  const strict = {
    agentUrl: agent.environment['AGENT_PUBLIC_URL'] ?? '',
    controlUrl: control.environment['PUBLIC_BASE_URL'] ?? '',
  };
  const [greedy, other] = [await newTenant(stack), await newTenant(stack)];
  Object.assign(t.context, { stack, greedy, other, strict });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const addresses = Array.from({ length: ATTACKERS }, (_, index) => `127.9.4.${index + 1}`);

/** Starts an upload and sends only its beginning. */
function beginUpload(
  { api, diskId }: Tenant,
  baseUrl: string,
  localAddress: string,
): ClientRequest {
  const headers = { authorization: api.key, 'content-length': String(64 * KiB) };
  const sent = beginRequest(`${baseUrl}/${diskId}/slow`, { method: 'PUT', headers, localAddress });
  sent.write('beginning');
  return sent;
}

test('slow uploads of one account, from any address, leave places for others', async (t) => {
  const { stack, greedy, other } = t.context;
  for (const baseUrl of [s3UrlOf(stack), stack.baseUrl]) {
    const sent = addresses.map((address) => beginUpload(greedy, baseUrl, address));
    const refused: string[] = [];
    for (const each of sent) {
      outcomeOf(each).then(
        ({ status, code }) => refused.push(`${status} ${code}`),
        () => undefined,
      );
    }
    await waitFor('refusals', async () => refused.length >= ATTACKERS - PLACES / 2);
    t.deepEqual([...new Set(refused)], ['503 SlowDown']);
    const client = new ObjectClient(baseUrl, other.api.key);
    for (let turn = 0; turn < 5; turn += 1) {
      t.is((await client.put(other.diskId, 'file', 'content')).status, 200);
      t.is((await client.get(other.diskId, 'file')).status, 200);
    }
    for (const each of sent) each.destroy();
    await waitFor('the account to be served again', async () => {
      const reply = await greedy.objects.put(greedy.diskId, 'file', 'content');
      return reply.status === 200;
    });
  }
});

test('slow uploads from one address leave places for other addresses of the account', async (t) => {
  const { stack, greedy } = t.context;
  const sent = addresses.map(() => beginUpload(greedy, stack.baseUrl, '127.9.5.1'));
  await sleep(500);
  const client = new ObjectClient(stack.baseUrl, t.context.other.api.key);
  t.is((await client.put(t.context.other.diskId, 'file', 'content')).status, 200);
  for (const each of sent) each.destroy();
});

test('stalled downloads of one link leave places for other links', async (t) => {
  const { greedy, other } = t.context;
  const held: IncomingMessage[] = [];
  const statuses = new Set<number>();
  try {
    await waitFor('a refusal', async () => {
      const answer = await open(greedy.link);
      answer.on('error', () => undefined).pause();
      held.push(answer);
      statuses.add(answer.statusCode ?? 0);
      return statuses.has(429);
    });
    t.deepEqual(statuses, new Set([200, 429]));
    const refused = await download(greedy.link);
    t.is(codeOf(refused), 'rate_limited');
    t.is(refused.headers['retry-after'], '2');
    t.is((await download(other.link, { range: 'bytes=0-9' })).status, 206);
    t.is((await other.objects.get(other.diskId, 'small')).status, 200);
  } finally {
    for (const each of held) each.destroy();
  }
  await waitFor('the link to be served again', async () => {
    return (await download(greedy.link, { range: 'bytes=0-9' })).status === 206;
  });
});

test('a transfer that stands still is broken off, one that moves slowly is not', async (t) => {
  const { strict, other } = t.context;
  const { agentUrl, controlUrl } = strict;
  for (const baseUrl of [agentUrl, controlUrl]) {
    const still = beginUpload(other, baseUrl, '127.9.6.1');
    const closed = new Promise((resolve) => {
      still.once('close', resolve);
    });
    const bytes = Buffer.alloc(2 * KiB, 'x');
    const turns = 16;
    const slow = beginRequest(`${baseUrl}/${other.diskId}/slow`, {
      method: 'PUT',
      headers: {
        authorization: other.api.key,
        'content-length': String(turns * bytes.length),
      },
    });
    const outcome = outcomeOf(slow);
    for (let turn = 0; turn < turns; turn += 1) {
      slow.write(bytes);
      await sleep((3 * STALLED_MS) / turns);
    }
    slow.end();
    t.is((await outcome).status, 200);
    await closed;
  }
  const link = other.link.replace(/^http:\/\/[^/]+/u, controlUrl);
  const answer = await open(link);
  answer.on('error', () => undefined).pause();
  await sleep(4 * STALLED_MS);
  t.false(await isWhole(answer));
});
