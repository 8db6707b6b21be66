/* The public client from npm, library and command line, configured with only a base URL. */
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import { Archil, ArchilS3Error } from 'disk';
import type { ApiClient } from '../helpers/api.ts';
import { newName } from '../helpers/disks.ts';
import { Stack } from '../helpers/stack.ts';
import { Tools } from '../helpers/tools.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  client: Archil;
  cli: (...args: string[]) => Promise<string>;
  tools: Tools;
}

const test = anyTest as TestFn<Context>;
const REGION = 'anything';
const program = join(dirname(createRequire(import.meta.url).resolve('disk')), 'cli.js');

test.before(async (t) => {
  const stack = await Stack.start();
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const client = new Archil({ apiKey: api.key, region: REGION, baseUrl: stack.baseUrl });
  const tools = await Tools.in(stack, { ARCHIL_API_KEY: api.key, ARCHIL_REGION: REGION });
  const cli = (...args: string[]) =>
    tools.output(process.execPath, program, '--base-url', stack.baseUrl, ...args);
  Object.assign(t.context, { api, client, tools, cli });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

test('library: a disk is made, found, used and deleted', async (t) => {
  const { client } = t.context;
  const name = newName();
  const { disk, token, tokenIdentifier } = await client.disks.create({ name });
  t.is(disk.name, name);
  t.is(disk.status, 'available');
  t.regex(token ?? '', /^dt-/u);
  t.truthy(tokenIdentifier);
  t.deepEqual(
    (await client.disks.list({ name })).map(({ id }) => id),
    [disk.id],
  );
  const result = await disk.exec('echo out; echo err >&2; exit 3');
  t.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 3]);
  const both = await client.exec({
    disks: { one: disk, two: { disk, readOnly: true } },
    command: 'echo hello > one/file; cat two/file; pwd',
  });
  t.is(both.stdout, 'hello\n/mnt/service\n', both.stderr);
  await disk.delete();
  await t.throwsAsync(client.disks.get(disk.id), { message: /not found/iu });
});

test('library: objects', async (t) => {
  const { client } = t.context;
  const { disk } = await client.disks.create({ name: newName() });
  const key = 'dir/a b+c%(1)ü?.txt';
  const { etag } = await disk.putObject(key, 'hello', 'text/x-mine');
  t.regex(etag ?? '', /^"[0-9a-f]{32}"$/u);
  const head = await disk.headObject(key);
  t.deepEqual([head?.size, head?.contentType, head?.etag], [5, 'text/x-mine', etag]);
  t.is(Buffer.from(await disk.getObject(key)).toString(), 'hello');
  t.is((await disk.exec('cat dir/a*')).stdout, 'hello');
  await disk.exec('mkdir -p many/below && cd many && touch $(seq 1 1100) "a & b" below/x');
  const listed = await disk.listObjects('many/');
  t.is(listed.objects.length, 1101);
  t.true(listed.objects.some((each) => each.key === 'many/a & b'));
  t.deepEqual(listed.commonPrefixes, ['many/below/']);
  const some = await disk.listObjects('many/', { recursive: true, startAfter: 'many/below' });
  t.deepEqual(
    some.objects.map((each) => each.key),
    ['many/below/x'],
  );
  await disk.deleteObject(key);
  await disk.deleteObject(key);
  t.false(await disk.objectExists(key));
  const missing = await t.throwsAsync(disk.getObject(key), { instanceOf: ArchilS3Error });
  t.deepEqual([missing.status, missing.code], [404, 'NoSuchKey']);
});

test('library: users, addresses, keys and links', async (t) => {
  const { client } = t.context;
  const { disk } = await client.disks.create({ name: newName() });
  const user = await disk.addUser({ type: 'token', nickname: 'second' });
  t.is((await client.disks.get(disk.id)).authorizedUsers?.length, 2);
  await disk.removeUser('token', user.identifier ?? '');
  t.is((await client.disks.get(disk.id)).authorizedUsers?.length, 1);
  t.deepEqual(await disk.addAllowedIP('203.0.113.5'), ['203.0.113.5']);
  t.deepEqual(await disk.removeAllowedIP('203.0.113.5'), []);
  const created = await client.tokens.create({ name: 'from the library' });
  t.true((await client.tokens.list()).some(({ id }) => id === created.id));
  await client.tokens.delete(created.id ?? '');
  t.false((await client.tokens.list()).some(({ id }) => id === created.id));
  await disk.putObject('shared.txt', 'for all');
  const { url } = await disk.share('shared.txt', { expiresIn: 60 });
  t.is(await (await fetch(url)).text(), 'for all');
});

test('library: grep', async (t) => {
  const { client } = t.context;
  const { disk } = await client.disks.create({ name: newName() });
  await disk.putObject('logs/one.txt', 'nothing\nan error here\n');
  await disk.putObject('logs/deep/two.txt', 'error 2\n');
  const flat = await disk.grep({ directory: 'logs', pattern: 'error( 2)?' });
  t.deepEqual(flat.matches, [{ file: 'logs/one.txt', line: 2, text: 'an error here' }]);
  t.is(flat.stoppedReason, 'completed');
  const deep = await disk.grep({ directory: '', pattern: '^error', recursive: true });
  t.deepEqual(deep.matches, [{ file: 'logs/deep/two.txt', line: 1, text: 'error 2' }]);
});

test('command line: a disk from its creation to its deletion', async (t) => {
  const { cli, tools, stack, client } = t.context;
  const name = newName();
  const created = await cli('create', name);
  t.regex(created, /Disk token[^]*dt-/u);
  t.true((await cli('list')).includes(name));
  const { id = '' } = (await client.disks.list({ name }))[0] ?? {};
  t.is((JSON.parse(await cli('get', name, '-o', 'json')) as { id: string }).id, id);
  t.regex(await cli('get', id), /Authorized users/u);
  t.is(await cli('exec', name, 'echo', 'hi', '>', 'greeting;', 'cat', 'greeting'), 'hi\n');
  const sugar = [program, name, 'exec', '--base-url', stack.baseUrl, 'cat greeting'];
  t.is(await tools.output(process.execPath, ...sugar), 'hi\n');
  const flags = [program, '--base-url', stack.baseUrl];
  t.is((await tools.run(process.execPath, [...flags, 'exec', name, 'exit 7'])).code, 7);
  t.regex(await cli('delete', name), /^Deleted /u);
  const missing = await tools.run(process.execPath, [...flags, 'get', name]);
  t.deepEqual([missing.code, missing.stderr.startsWith('Error (404)')], [1, true], missing.stderr);
});

test('command line: grep', async (t) => {
  const { cli, client } = t.context;
  const { disk } = await client.disks.create({ name: newName() });
  await disk.putObject('logs/deep/two.txt', 'one\nerror 2\n');
  t.is(await cli('grep', '^error', `${disk.id}/logs`), 'logs/deep/two.txt:2:error 2\n');
});

test('command line: API keys', async (t) => {
  const { cli } = t.context;
  const created = await cli('api-keys', 'create', 'from-cli', '--description', 'test');
  t.regex(created, /key-/u);
  const [, id = ''] = /\((\S+)\)/u.exec(created) ?? [];
  t.true((await cli('api-keys', 'list')).includes(id));
  t.regex(await cli('api-keys', 'delete', id), /^Deleted/u);
  t.false((await cli('api-keys', 'list')).includes(id));
});
