/* Who may use a host's data endpoint: control nodes of the cluster, for this host, one file each. */
import anyTest, { type TestFn } from 'ava';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import {
  DATA_PATH,
  type DataRequest,
  dataRequestHeaders,
  readDataError,
} from '../../shared/data-protocol.ts';
import { signToken } from '../../shared/secrets.ts';
import { createDisk, exec, readManifest } from '../helpers/disks.ts';
import { download, type Fetched, type Headers } from '../helpers/shares.ts';
import { Stack } from '../helpers/stack.ts';

interface Context {
  stack: Stack;
  secret: string;
  wanted: DataRequest;
  readonly ask: (headers: Headers, method?: string) => Promise<Fetched>;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const stack = await Stack.start();
  const api = await stack.newClient();
  const { id: diskId } = await createDisk(api);
  await exec(api, diskId, 'echo content > file');
  const { accountId } = await readManifest(stack, diskId);
  const { AGENT_DATA_DIR = '', AGENT_ADMIN_PORT = '', CLUSTER_SECRET = '' } = stack.environment;
  const hostId = (await readFile(join(AGENT_DATA_DIR, 'host-id'), 'utf8')).trim();
  const url = `http://127.0.0.1:${AGENT_ADMIN_PORT}${DATA_PATH}`;
  Object.assign(t.context, {
    stack,
    secret: CLUSTER_SECRET,
    wanted: { accountId, diskId, hostId, operation: 'read', key: 'file' },
    ask: (headers: Headers, method = 'GET') => download(url, headers, method),
  });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const errorOf = ({ headers }: Fetched): string | undefined => readDataError(headers)?.code;

test('a signed request gets the file, and HEAD its description', async (t) => {
  const { secret, wanted, ask } = t.context;
  const headers = dataRequestHeaders(secret, wanted);
  t.is((await ask(headers)).body.toString(), 'content\n');
  t.like(await ask(headers, 'HEAD'), { status: 200, body: Buffer.alloc(0) });
  t.is((await ask({ ...headers, range: 'bytes=0-0' })).body.toString(), 'c');
});

test('whoever is not a control node of the cluster is refused', async (t) => {
  const { secret, wanted, ask } = t.context;
  const soon = Date.now() + 10_000;
  const tokens = [
    '',
    signToken(`${secret}x`, 'agent-data', wanted, soon),
    signToken(secret, 'agent-link', wanted, soon),
    signToken(secret, 'agent-data', wanted, Date.now() - 1),
    signToken(secret, 'agent-data', { ...wanted, hostId: 'host-000000000000' }, soon),
  ];
  for (const token of tokens) {
    const reply = await ask({ authorization: `Bearer ${token}` });
    t.is(errorOf(reply), 'forbidden', token);
    t.is(reply.body.length, 0);
  }
  t.is(errorOf(await ask({})), 'forbidden');
  t.is(errorOf(await ask(dataRequestHeaders(secret, wanted), 'PUT')), 'forbidden');
});

test('claims that are none of ours are refused', async (t) => {
  const { secret, wanted, ask } = t.context;
  for (const change of [{ operation: 'write' }, { diskId: '../x' }, { key: '' }]) {
    const token = signToken(secret, 'agent-data', { ...wanted, ...change }, Date.now() + 10_000);
    t.is(errorOf(await ask({ authorization: `Bearer ${token}` })), 'bad_request');
  }
});

test('what is wrong with the file is told, also to HEAD', async (t) => {
  const { secret, wanted, ask } = t.context;
  for (const method of ['GET', 'HEAD']) {
    const missing = dataRequestHeaders(secret, { ...wanted, key: 'missing' });
    t.is(errorOf(await ask(missing, method)), 'not_found');
    const outside = dataRequestHeaders(secret, { ...wanted, key: '../manifest.json' });
    t.is(errorOf(await ask(outside, method)), 'not_found');
    const elsewhere = dataRequestHeaders(secret, { ...wanted, diskId: 'dsk-0123456789abcdef' });
    t.is(errorOf(await ask(elsewhere, method)), 'not_found');
  }
});
