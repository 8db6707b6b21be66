/*
 * Four clients change objects at random, by requests and by commands, while agent and control are
 * killed: contents, ETags, metadata, checksums and listings stay what a model of each key says. A
 * failure names its seed: BERTH_TEST_SEED repeats the draws, though not the moments of the kills.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type TestFn } from 'ava';
import { Random } from '../helpers/random.ts';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk } from '../helpers/disks.ts';
import { ObjectActor } from '../helpers/object-actor.ts';
import { ObjectClient, s3UrlOf } from '../helpers/objects.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { isFull } from '../helpers/full.ts';

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient; disk: string }>;
const SEED = Number(process.env['BERTH_TEST_SEED'] ?? Date.now() % 1_000_000);
const SEQUENCES = Number(process.env['BERTH_TEST_SEQUENCES'] ?? (isFull ? 4_000 : 48));
const SEQUENCES_PER_KILL = isFull ? 40 : 16;
/** Longer than a request that lost its connection is at work. */
const SETTLE_MS = 500;

test.before(async (t) => {
  const stack = await Stack.start();
  const api = await stack.newClient();
  const { id } = await createDisk(api);
  Object.assign(t.context, { stack, api, disk: id });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** Adds one to the number in the object, unless somebody else has changed it meanwhile. */
async function increment(client: ObjectClient, disk: string): Promise<'done' | 'lost' | 'unknown'> {
  const read = await waitFor('the counter', async () => {
    const reply = await client.get(disk, 'counter').catch(() => undefined);
    return reply?.status === 200 ? reply : undefined;
  });
  const headers = { 'if-match': read.headers.get('etag') ?? '' };
  const body = String(Number(read.text) + 1);
  const put = await client.put(disk, 'counter', body, headers).catch(() => undefined);
  if (put?.status === 200) return 'done';
  return put?.status === 412 ? 'lost' : 'unknown';
}

test.serial('of conditional writes that race, as many count as were told so', async (t) => {
  const { stack, api, disk } = t.context;
  const clients = [s3UrlOf(stack), stack.baseUrl].flatMap((url) =>
    Array.from({ length: 2 }, () => new ObjectClient(url, api.key)),
  );
  await clients[0]?.put(disk, 'counter', '0');
  const counts = { done: 0, lost: 0, unknown: 0 };
  const work = async (client: ObjectClient): Promise<void> => {
    for (let attempt = 0; attempt < 30; attempt += 1) counts[await increment(client, disk)] += 1;
  };
  const kills = (async () => {
    await sleep(100);
    await stack.agent.stop('SIGKILL');
    await stack.startAgent();
  })();
  await Promise.all(clients.map(work));
  await kills;
  const { text } = await waitFor('the counter', async () => {
    const reply = await clients[0]?.get(disk, 'counter').catch(() => undefined);
    return reply?.status === 200 ? reply : undefined;
  });
  t.log(counts);
  t.true(counts.done > 0);
  t.true(Number(text) >= counts.done && Number(text) <= counts.done + counts.unknown);
});

test.serial(
  'what four clients do to objects is what the model says, whatever is killed',
  async (t) => {
    t.timeout(isFull ? 3_600_000 : 300_000);
    const { stack, api, disk } = t.context;
    t.log(`seed ${SEED}`);
    const random = new Random(SEED, 'kills');
    let next = 0;
    let killing = Promise.resolve();
    const kill = async (): Promise<void> => {
      await sleep(random.integer(0, 400));
      const isAgent = random.integer(0, 1) === 0;
      await (isAgent ? stack.agent : stack.control).stop('SIGKILL');
      await (isAgent ? stack.startAgent() : stack.startControl());
    };
    const act = async (index: number): Promise<void> => {
      const url = index % 2 === 0 ? s3UrlOf(stack) : stack.baseUrl;
      const client = new ObjectClient(url, api.key);
      const recovered = async (): Promise<void> => {
        await sleep(SETTLE_MS);
        await killing;
        await waitFor('the disk', async () => {
          const reply = await client.call('HEAD', `/${disk}`).catch(() => undefined);
          return reply?.status === 200;
        });
      };
      const actor = new ObjectActor({
        ...{ client, api, disk, recovered },
        random: new Random(SEED, `client ${index}`),
      });
      while (next < SEQUENCES) {
        next += 1;
        if (next % SEQUENCES_PER_KILL === 0) killing = killing.then(kill);
        await actor.runSequence(`${index}-${next}`);
      }
    };
    await t.notThrowsAsync(Promise.all([0, 1, 2, 3].map(act)));
    await killing;
  },
);
