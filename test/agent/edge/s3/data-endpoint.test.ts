/*
 * Authorization at a host's data endpoint: control nodes of the cluster, for this host, one file
 * each.
 */
import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { buffer } from 'node:stream/consumers';
import anyTest, { type TestFn } from 'ava';
import { OBJECT_HEADER } from '../../../../agent/edge/s3/remote-errors.ts';
import {
  DATA_PATH,
  type DataRequest,
  readDataError,
} from '../../../../shared/links/data-protocol.ts';
import { type PartRequest, PartRequests } from '../../../../shared/links/part-requests.ts';
import { createDisk, exec, readManifest } from '../../../helpers/disks.ts';
import { hostIdOf } from '../../../helpers/host.ts';
import { download, type Fetched } from '../../../helpers/shares.ts';
import { Stack } from '../../../helpers/stack.ts';

interface Context {
  stack: Stack;
  url: string;
  wanted: DataRequest;
  /** Asks as a control node does, but for the changes. */
  ask: (changes?: Partial<Asked>) => Promise<Fetched>;
}

interface Asked extends PartRequest {
  readonly secret: string;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const stack = await Stack.start();
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const { id: diskId } = await createDisk(api);
  await exec(api, diskId, 'echo content > file');
  const { accountId } = await readManifest(stack, diskId);
  const { AGENT_ADMIN_PORT = '', CLUSTER_SECRET = '' } = stack.environment;
  const baseUrl = `http://127.0.0.1:${AGENT_ADMIN_PORT}`;
  const wanted: DataRequest = { accountId, diskId, operation: 'read', key: 'file' };
  const hostId = await hostIdOf(stack.environment);
  const usual: Asked = {
    ...{ secret: CLUSTER_SECRET, purpose: 'agent-data', claims: wanted, hostId, baseUrl },
    ...{ method: 'GET', target: DATA_PATH, framing: 'none', rawHeaders: ['Host', 'test'] },
  };
  const ask = async (changes: Partial<Asked> = {}): Promise<Fetched> => {
    const { secret, ...request } = { ...usual, ...changes };
    const requests = new PartRequests({ clusterSecrets: [secret] }, 0);
    const sent = requests.begin(request).end();
    const [answer] = (await once(sent, 'response')) as [IncomingMessage];
    const { statusCode: status = 0, headers } = answer;
    const body = await buffer(answer);
    requests.close();
    return { status, headers, body };
  };
  Object.assign(t.context, { url: `${baseUrl}${DATA_PATH}`, wanted, ask });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const errorOf = ({ headers }: Fetched): string | undefined => readDataError(headers)?.code;

test('a signed request gets the file, and HEAD its description', async (t) => {
  const { ask } = t.context;
  t.is((await ask()).body.toString(), 'content\n');
  t.like(await ask({ method: 'HEAD' }), { status: 200, body: Buffer.alloc(0) });
  const range = ['Host', 'test', 'Range', 'bytes=0-0'];
  t.is((await ask({ rawHeaders: range })).body.toString(), 'c');
});

test('whoever is not a control node of the cluster is refused', async (t) => {
  const { ask, url } = t.context;
  const refused: Partial<Asked>[] = [
    { secret: 'another-secret-of-another-cluster' },
    { purpose: 'object-forward' },
    { hostId: 'host-000000000000' },
  ];
  for (const changes of refused) {
    const reply = await ask(changes);
    t.is(errorOf(reply), 'unavailable', JSON.stringify(changes));
    t.is(reply.body.length, 0);
  }
  for (const token of ['', 'x', 'e30.', '='.repeat(1000)]) {
    t.is(errorOf(await download(url, { 'x-berth-proof': token })), 'unavailable', token);
  }
  t.is(errorOf(await download(url)), 'unavailable');
  t.is(errorOf(await ask({ method: 'DELETE' })), 'forbidden');
});

test('claims that are none of ours are refused', async (t) => {
  const { wanted, ask } = t.context;
  for (const change of [{ operation: 'write' }, { diskId: '../x' }, { key: '' }]) {
    t.is(errorOf(await ask({ claims: { ...wanted, ...change } })), 'bad_request');
  }
});

test('the source of a copy is described, and what cannot be one is not there', async (t) => {
  const { wanted, ask } = t.context;
  const source = { ...wanted, operation: 'object' } as const;
  const described = await ask({ claims: source });
  t.is(described.body.toString(), 'content\n');
  t.is(typeof described.headers[OBJECT_HEADER], 'string');
  for (const key of ['missing', 'a//b', '../file', 'k'.repeat(256), `${'d/'.repeat(2000)}x`]) {
    t.is(errorOf(await ask({ claims: { ...source, key } })), 'not_found', key);
  }
});

test('what is wrong with the file is told, also to HEAD', async (t) => {
  const { wanted, ask } = t.context;
  for (const method of ['GET', 'HEAD']) {
    for (const change of [
      { key: 'missing' },
      { key: '../manifest.json' },
      { diskId: 'dsk-0123456789abcdef' },
    ]) {
      t.is(errorOf(await ask({ method, claims: { ...wanted, ...change } })), 'not_found');
    }
  }
});
