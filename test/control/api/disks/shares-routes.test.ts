import anyTest, { type TestFn } from 'ava';
import { randomBytes } from 'node:crypto';
import { verifyToken } from '../../../../shared/secrets.ts';
import type { ShareUrl } from '../../../../shared/schemas/share.ts';
import { ApiClient } from '../../../helpers/api.ts';
import { createDisk, exec, missingDiskId } from '../../../helpers/disks.ts';
import { codeOf, download, forgeLink, share } from '../../../helpers/shares.ts';
import { Stack } from '../../../helpers/stack.ts';
import { waitFor } from '../../../helpers/wait.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  diskId: string;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const stack = await Stack.start();
  const api = await stack.newClient();
  const { id } = await createDisk(api);
  const long = 'é'.repeat(127);
  await exec(
    api,
    id,
    `mkdir -p dir/sub; echo -n text > dir/sub/file.txt; echo -n x > ${long}; mkfifo pipe;
     ln -s dir/sub/file.txt inside; ln -s ../../etc/passwd outside; ln -s /etc/passwd absolute;
     ln -s loop loop; python3 -c 'import socket;
s = socket.socket(socket.AF_UNIX); s.bind("socket")'`,
  );
  Object.assign(t.context, { stack, api, diskId: id });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const ask = ({ api, diskId }: Context, body: object) =>
  api.call('POST', `/api/disks/${diskId}/share`, body);

test('a link is made for a file, for a day unless told otherwise', async (t) => {
  const { data } = (await ask(t.context, { key: 'dir/sub/file.txt' })).body;
  t.is((data as ShareUrl).expiresIn, 86_400);
  const { url, expiresIn } = (await ask(t.context, { key: '//dir/sub/file.txt', expiresIn: 7 }))
    .body.data as ShareUrl;
  t.is(expiresIn, 7);
  t.true(url.startsWith(`${t.context.stack.baseUrl}/api/shared/`));
  const key = t.context.stack.environment['SIGNING_KEYS'] ?? '';
  const claims = verifyToken([key], 'share', url.split('/').at(-1) ?? '');
  t.like(claims, { diskId: t.context.diskId, key: 'dir/sub/file.txt' });
  t.is((await download(url)).body.toString(), 'text');
});

const refuses = test.macro({
  async exec(t, body: object, status: number) {
    const reply = await ask((t as unknown as { context: Context }).context, body);
    t.is(reply.status, status, JSON.stringify(reply.body));
    t.is(reply.body.code, status === 400 ? 'bad_request' : 'not_found');
  },
  title: (_given, body, status) =>
    `${JSON.stringify(body).slice(0, 80)} answers ${status as number}`,
});

for (const key of [
  '',
  '/',
  '.',
  '..',
  '../etc/passwd',
  'dir/../dir/sub/file.txt',
  'dir/./sub',
  'dir//sub',
  'dir/sub/file.txt/',
  'a\0b',
  'lone \ud800',
  'x'.repeat(1025),
  `${'é'.repeat(512)}x`,
  'dir/sub',
  'pipe',
  'socket',
]) {
  test(refuses, { key }, 400);
}
for (const expiresIn of [0, -1, 604_801, 1.5, '60', null]) {
  test(refuses, { key: 'dir/sub/file.txt', expiresIn }, 400);
}
test(refuses, {}, 400);
test(refuses, { key: 7 }, 400);
for (const key of [
  'nothing',
  'dir/sub/file.txt/below',
  'x'.repeat(256),
  'outside',
  'absolute',
  'loop',
]) {
  test(refuses, { key }, 404);
}

test('a symbolic link within the disk is followed, and a name of 255 bytes is found', async (t) => {
  t.is((await ask(t.context, { key: 'inside' })).status, 200);
  const { api, diskId } = t.context;
  const { body, headers } = await download(await share(api, diskId, 'é'.repeat(127)));
  t.is(body.toString(), 'x');
  t.true(headers['content-disposition']?.includes(`filename*=UTF-8''${'%C3%A9'.repeat(127)}`));
});

test('the disk of another account answers like a missing one', async (t) => {
  const other = await t.context.stack.newClient();
  const body = { key: 'dir/sub/file.txt' };
  const foreign = await other.call('POST', `/api/disks/${t.context.diskId}/share`, body);
  const missing = await other.call('POST', `/api/disks/${missingDiskId}/share`, body);
  t.is(foreign.status, 404);
  t.deepEqual(foreign.body, {
    ...missing.body,
    error: missing.body.error.replace(missingDiskId, t.context.diskId),
  });
});

test('a token changed in any part is refused, and so is any other text', async (t) => {
  const { api, diskId, stack } = t.context;
  const url = await share(api, diskId, 'dir/sub/file.txt');
  const from = url.lastIndexOf('/') + 1;
  const [body = '', signature = ''] = url.slice(from).split('.');
  const claims = JSON.parse(Buffer.from(body, 'base64url').toString()) as Record<string, unknown>;
  const forged = (change: object): string =>
    Buffer.from(JSON.stringify({ ...claims, ...change })).toString('base64url');
  const tokens = [
    `${forged({ key: 'inside' })}.${signature}`,
    `${forged({ diskId: missingDiskId })}.${signature}`,
    `${forged({ accountId: 'acct-0000000000000000' })}.${signature}`,
    `${forged({ exp: Date.now() + 1e9 })}.${signature}`,
    `${body}.${signature.slice(0, -1)}`,
    `${body}.${signature.replace(/^./u, (first) => (first === 'A' ? 'B' : 'A'))}`,
    `${body}.`,
    body,
    `.${signature}`,
    `${body}.${signature}.${signature}`,
    'x',
    '%00',
  ];
  for (const token of tokens) {
    const reply = await download(url.slice(0, from) + token);
    t.is(reply.status, 403, token);
    t.is(codeOf(reply), 'forbidden');
  }
  const wrongKey = forgeLink(
    stack,
    { ...(claims as Record<string, string>) },
    { key: 'x'.repeat(32) },
  );
  t.is((await download(wrongKey)).status, 403);
});

test('a link past its time answers 410, even when the file is gone', async (t) => {
  const claims = { accountId: 'acct-0000000000000000', diskId: missingDiskId, key: 'k' };
  const reply = await download(forgeLink(t.context.stack, claims, { expiresAt: Date.now() - 1 }));
  t.is(reply.status, 410);
  t.is(codeOf(reply), 'expired');
  t.is(reply.headers['cache-control'], 'no-store');
  t.is((await download(forgeLink(t.context.stack, claims))).status, 404);
});

test('tokens never appear in a log', async (t) => {
  const { api, diskId, stack } = t.context;
  const url = await share(api, diskId, 'dir/sub/file.txt');
  await download(url);
  await download(`${url}x`);
  const signature = url.split('.').at(-1) ?? '';
  const { body } = await api.call('GET', '/api/disks'); // Logged after the downloads.
  t.true(body.success);
  const logs = (await stack.control.readLog()) + (await stack.agent.readLog());
  t.false(logs.includes(signature));
});

const works = (link: string): Promise<boolean> =>
  waitFor('the node to know the host', async () => (await download(link)).status === 200);

test.serial('links of the former key work until the key is gone', async (t) => {
  const { api, diskId, stack } = t.context;
  const formerKey = stack.environment['SIGNING_KEYS'] ?? '';
  const newKey = randomBytes(32).toString('base64url');
  const url = await share(api, diskId, 'dir/sub/file.txt');
  const rotating = await stack.addControl({ SIGNING_KEYS: `${newKey},${formerKey}` });
  const rotated = await stack.addControl({ SIGNING_KEYS: newKey });
  await rotating.start();
  await rotated.start();
  const at = (node: { environment: Record<string, string> }, link: string): string =>
    link.replace(stack.baseUrl, node.environment['PUBLIC_BASE_URL'] ?? '');
  t.true(await works(at(rotating, url)));
  t.is((await download(at(rotated, url))).status, 403);

  const rotatingApi = new ApiClient(at(rotating, stack.baseUrl), api.key);
  const fresh = await share(rotatingApi, diskId, 'dir/sub/file.txt');
  const token = fresh.split('/').at(-1) ?? '';
  t.true(await works(at(rotated, `${stack.baseUrl}/api/shared/${token}`)));
  t.is((await download(`${stack.baseUrl}/api/shared/${token}`)).status, 403);
});
