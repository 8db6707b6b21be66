/* Callers that open connections and leave them idle, up to the limits of the server. */
import anyTest, { type TestFn } from 'ava';
import { execFileSync } from 'node:child_process';
import type { ClientRequest, IncomingMessage } from 'node:http';
import { descriptorsOf, HeldConnections } from '../helpers/connections.ts';
import { exec } from '../helpers/disks.ts';
import { s3UrlOf } from '../helpers/objects.ts';
import { answerTo, beginRequest } from '../helpers/raw-objects.ts';
import { serveDisk, type ServedDisk } from '../helpers/served-disk.ts';
import { waitFor } from '../helpers/wait.ts';

const test = (anyTest as TestFn<ServedDisk>).serial;

const CONNECTIONS_MAX = 200;
const PER_ADDRESS_MAX = 50;
/** Descriptors of each process: enough for its own needs and its connections. */
const DESCRIPTORS = 600;
const FLOOD = 900;

test.before(async (t) => {
  const served = await serveDisk({
    CONNECTIONS_MAX: String(CONNECTIONS_MAX),
    CONNECTIONS_PER_ADDRESS_MAX: String(PER_ADDRESS_MAX),
  });
  Object.assign(t.context, served);
  for (const { pid } of [served.stack.agent, served.stack.control]) {
    execFileSync('prlimit', ['--pid', String(pid), `--nofile=${DESCRIPTORS}:${DESCRIPTORS}`]);
  }
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** Asserts that neither process was restarted and that both still work. */
async function isServing({ stack, api, objects, diskId }: ServedDisk): Promise<boolean> {
  const put = await objects.put(diskId, 'file', 'content');
  const ran = await exec(api, diskId, 'cat file');
  return put.status === 200 && ran.stdout === 'content' && stack.agent.isRunning;
}

const statusFrom = async (url: string, localAddress: string): Promise<number> => {
  const answer = await answerTo(beginRequest(url, { localAddress }));
  answer.resume();
  return answer.statusCode ?? 0;
};

for (const [what, beginning] of [
  ['idle connections', ''],
  ['requests whose head never ends', 'GET / HTTP/1.1\r\nhost: test\r\nx-a'],
] as const) {
  test(`${what} of one address leave the service to others, and to that address`, async (t) => {
    const { stack } = t.context;
    const pids = [stack.agent.pid, stack.control.pid];
    for (const [url, pid] of [
      [s3UrlOf(stack), stack.agent.pid],
      [stack.baseUrl, stack.control.pid],
    ] as const) {
      using held = new HeldConnections();
      await held.open(url, FLOOD, { from: '127.9.0.1', beginning });
      await waitFor('the excess to be dropped', async () => held.openCount <= PER_ADDRESS_MAX);
      t.true((await descriptorsOf(pid)) < DESCRIPTORS - CONNECTIONS_MAX);
      t.true(await isServing(t.context));
      t.not(await statusFrom(`${url}/healthz`, '127.9.0.1'), 503);
    }
    t.deepEqual([stack.agent.pid, stack.control.pid], pids);
  });
}

test('idle connections of many addresses leave the service to others', async (t) => {
  const { stack } = t.context;
  const pids = [stack.agent.pid, stack.control.pid];
  for (const url of [s3UrlOf(stack), stack.baseUrl]) {
    using held = new HeldConnections();
    for (let host = 1; host <= 30; host += 1) {
      await held.open(url, FLOOD / 30, { from: `127.9.1.${host}` });
    }
    await waitFor('the excess to be dropped', async () => held.openCount <= CONNECTIONS_MAX);
    t.true(await isServing(t.context));
  }
  t.deepEqual([stack.agent.pid, stack.control.pid], pids);
});

test('an address whose connections are all busy gets 503; others are served', async (t) => {
  const { stack, objects, diskId, api } = t.context;
  const url = `${s3UrlOf(stack)}/${diskId}/slow`;
  const localAddress = '127.9.2.1';
  const headers = { authorization: api.key, 'content-length': '1000' };
  const sent: ClientRequest[] = [];
  const refusals: IncomingMessage[] = [];
  try {
    await waitFor('a refusal', async () => {
      const upload = beginRequest(url, { localAddress, method: 'PUT', headers });
      upload.on('response', (answer) => refusals.push(answer.resume())).write('some');
      sent.push(upload);
      return refusals.length > 0;
    });
    t.true(sent.length > PER_ADDRESS_MAX);
    t.is(refusals[0]?.statusCode, 503);
    t.truthy(refusals[0]?.headers['retry-after']);
    t.is((await objects.put(diskId, 'other', 'content')).status, 200);
  } finally {
    for (const each of sent) each.destroy();
  }
  await waitFor('room for the address', async () => (await statusFrom(url, localAddress)) === 403);
  const log = await stack.agent.readLog();
  t.true(log.split('connections:limited').length < 50, 'one event for many connections');
});
