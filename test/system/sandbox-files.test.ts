/*
 * Files of sandboxes over HTTP, from the API to the guest, in containers; sandboxes.test.ts has
 * them in a virtual machine. Tests that send many requests at once have a sandbox of their own: a
 * sandbox answers 429 to more than `LIMITS.filesPerSandboxMax`.
 */
import { text } from 'node:stream/consumers';
import { type IncomingMessage, request } from 'node:http';
import { once } from 'node:events';
import { Berth, NotFoundError } from '@berth/sdk';
import type { SandboxFile } from '../../shared/schemas/sandbox-file.ts';
import { MiB } from '../../shared/units.ts';
import {
  containerSettings,
  createSandbox,
  outputOf,
  removeSandbox,
  sandboxPath,
} from '../helpers/sandboxes.ts';
import { checkFiles, Files } from '../helpers/sandbox-files.ts';
import { isFull } from '../helpers/full.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

const test = stackTest(containerSettings(), async ({ api }) => ({
  id: (await createSandbox(api)).sandbox_id,
}));

test('a container: files go up and down, are listed, watched and removed', async (t) => {
  const { api, stack, id } = t.context;
  await checkFiles(t, new Files(stack, api, id));
});

test('preconditions decide on reading and writing', async (t) => {
  const { api, stack, id } = t.context;
  const files = new Files(stack, api, id);
  const path = '/tmp/conditions';
  const { etag = '' } = await files.put(path, 'one');
  const get = (headers: Record<string, string>) => files.fetch('GET', path, { headers });
  t.is((await get({ 'if-none-match': etag })).status, 304);
  t.is((await get({ 'if-match': '"other"' })).status, 412);
  t.is((await get({ range: 'bytes=9-' })).status, 416);
  const head = await files.fetch('HEAD', path);
  t.is(head.headers.get('etag'), etag);
  t.is(head.headers.get('content-length'), '3');
  t.truthy(head.headers.get('last-modified'));
  t.is(head.headers.get('x-content-type-options'), 'nosniff');

  const put = async (headers: Record<string, string>): Promise<number> =>
    (await files.fetch('PUT', path, { headers, body: 'two' })).status;
  t.is(await put({ 'if-none-match': '*' }), 412);
  t.is(await put({ 'if-match': '"other"' }), 412);
  t.is((await files.get(path)).toString(), 'one');
  t.is(await put({ 'if-match': etag }), 200);
  t.is(await put({ 'if-match': etag }), 412);
  t.is((await files.get(path)).toString(), 'two');
});

test('a time is a condition of a write, and what is not obeyed is refused', async (t) => {
  const { api, stack, id } = t.context;
  const files = new Files(stack, api, id);
  const path = '/tmp/dated';
  const { modified_at: modifiedAt } = await files.put(path, 'one');
  const at = (seconds: number): string =>
    new Date(Date.parse(modifiedAt) + seconds * 1000).toUTCString();
  const ask = async (method: string, headers: Record<string, string>): Promise<number> => {
    const body = method === 'PUT' ? { body: 'two' } : {};
    return (await files.fetch(method, path, { headers, ...body })).status;
  };
  t.is(await ask('PUT', { 'if-unmodified-since': at(-5) }), 412);
  t.is(await ask('PUT', { 'content-range': 'bytes 0-2/6' }), 400);
  t.is(await ask('PUT', { 'content-encoding': 'gzip' }), 400);
  for (const condition of ['if-match', 'if-none-match', 'if-unmodified-since']) {
    t.is(await ask('DELETE', { [condition]: '"other"' }), 400, condition);
  }
  t.is((await files.get(path)).toString(), 'one');
  t.is(await ask('PUT', { 'if-unmodified-since': at(5) }), 200);
  t.is((await files.get(path)).toString(), 'two');
});

test('HEAD is answered where GET is, and holds nothing up', async (t) => {
  const { api, stack, id } = t.context;
  const files = new Files(stack, api, id);
  const ask = (method: string, operation: string): Promise<Response> =>
    fetch(`${stack.baseUrl}${sandboxPath(id)}/files/${operation}`, {
      method,
      headers: files.headers,
    });
  for (const operation of ['list?path=/etc', 'stat?path=/etc', 'watch?path=/etc']) {
    const head = await ask('HEAD', operation);
    t.deepEqual([head.status, await head.text()], [200, ''], operation);
    t.is((await ask('HEAD', operation.replace('/etc', '/none'))).status, 404, operation);
  }
  const [get, head] = [await ask('GET', 'stat?path=/etc'), await ask('HEAD', 'stat?path=/etc')];
  t.is(head.headers.get('content-length'), String((await get.arrayBuffer()).byteLength));
});

test('a directory can be listed whatever the size of its files', async (t) => {
  const { api, stack, id } = t.context;
  const files = new Files(stack, api, id);
  await outputOf(api, id, 'mkdir /dev/shm/huge && truncate -s 8191P /dev/shm/huge/file');
  const { data } = (await files.call<{ entries: SandboxFile[] }>('GET', '/list?path=/dev/shm/huge'))
    .body;
  t.deepEqual(
    data.entries.map(({ path, size }) => [path, size]),
    [['/dev/shm/huge/file', Number.MAX_SAFE_INTEGER]],
  );
  const read = await files.fetch('GET', '/dev/shm/huge/file');
  t.is(read.status, 413);
  t.like(await read.json(), { code: 'file_too_large' });
  await outputOf(api, id, 'rm -r /dev/shm/huge');
});

test('paths are bytes; errors say what is there', async (t) => {
  const { api, stack, id } = t.context;
  const files = new Files(stack, api, id);
  const made = await files.put('/tmp/caf%E9%0A%25+b', 'x');
  t.is(made.path_encoded, '/tmp/caf%E9%0A%25%20b');
  t.is((await files.get(made.path_encoded ?? '')).toString(), 'x');
  const moved = await files.call('POST', '/move', {
    from_encoded: made.path_encoded,
    to: '/tmp/ünïcode %25',
  });
  t.is(moved.body.data?.path, '/tmp/ünïcode %25', JSON.stringify(moved.body));
  t.is((await files.get('/tmp/ünïcode%20%2525')).toString(), 'x');
  await outputOf(
    api,
    id,
    'mkfifo /tmp/fifo; mkdir /tmp/full; touch /tmp/full/x; ln -s /proc/1/root /tmp/out',
  );
  const code = async (method: string, path: string, more = ''): Promise<string> => {
    const init = method === 'PUT' ? { body: 'x' } : {};
    const answer = await files.fetch(method, path, init, more);
    return `${answer.status} ${((await answer.json()) as { code: string }).code}`;
  };
  t.is(await code('GET', '/tmp/none'), '404 not_found');
  t.is(await code('GET', '/tmp'), '409 is_a_directory');
  t.is(await code('GET', '/tmp/fifo'), '409 not_a_file');
  t.is(await code('PUT', '/tmp/fifo'), '409 not_a_file');
  t.is(await code('PUT', '/tmp/fifo/x'), '409 not_a_directory');
  t.is(await code('PUT', '/proc/version'), '403 permission_denied');
  t.is(await code('DELETE', '/tmp/full'), '409 directory_not_empty');
  t.is(await code('DELETE', '/'), '409 file_busy');
  t.is(await code('GET', '/tmp/out/etc/passwd'), '409 link_not_followed');
  t.is(await code('GET', '/proc/1/root/etc/passwd'), '409 link_not_followed');
  t.is(await code('GET', 'relative'), '400 bad_request');
  t.is((await files.call('POST', '/directories', { path: '/tmp/full' })).body.code, 'file_exists');
  const again = await files.call('POST', '/directories', { path: '/tmp/full', parents: true });
  t.is(again.status, 200);
  const fresh = await files.call('POST', '/directories', {
    path: '/tmp/fresh',
    mode: '0700',
    uid: 3,
  });
  t.is(fresh.status, 201);
  t.like(fresh.body.data, { mode: '0700', uid: 3, type: 'directory' });
  await outputOf(api, id, 'cp /bin/true /tmp/privileged; chmod 7755 /tmp/privileged');
  t.is((await files.fetch('PUT', '/tmp/privileged', { body: 'x' })).status, 200);
  t.is((await outputOf(api, id, 'stat -c %a /tmp/privileged')).trim(), '1755');
  const link = await files.call('GET', '/stat?path=/tmp/out&follow=false');
  t.like(link.body.data, { type: 'link', target: '/proc/1/root' });
});

test('a full disk is told, and nothing of the upload stays', async (t) => {
  const { api, stack } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const files = new Files(stack, api, id);
  await outputOf(
    api,
    id,
    'mkdir /small; fallocate -l 1G /fill; head -c 500M /dev/zero > /fill; true',
  );
  const answer = await files.fetch('PUT', '/small/big', { body: Buffer.alloc(4 * MiB) });
  t.is(answer.status, 409);
  t.is(((await answer.json()) as { code: string }).code, 'no_space');
  t.is(await outputOf(api, id, 'ls -A /small'), '');
  await removeSandbox(api, id);
});

test('an upload that stands still or is cut disturbs nobody, and leaves nothing', async (t) => {
  const { api, stack } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const files = new Files(stack, api, id);
  await outputOf(api, id, 'mkdir /cut');
  const url = files.url('/cut/file');
  const headers = { ...files.headers, 'content-length': '1000000' };
  const stalled = Array.from({ length: 4 }, () => {
    const upload = request(url, { method: 'PUT', headers });
    upload.on('error', () => undefined);
    upload.write(Buffer.alloc(100_000));
    return upload;
  });
  await files.put('/cut/other', 'y'.repeat(200_000));
  t.is((await outputOf(api, id, 'ls -A /cut')).trim(), 'other');
  for (const upload of stalled) upload.destroy();
  await files.put('/cut/file', 'whole');
  t.is((await outputOf(api, id, 'cat /cut/file; ls -A /cut')).trim(), 'wholefile\nother');
  await removeSandbox(api, id);
});

test('another account finds nothing, and what does not run has no files', async (t) => {
  const { api, stack, id } = t.context;
  const stranger = new Files(stack, await stack.newClient(), id);
  t.is((await stranger.fetch('GET', '/etc/passwd')).status, 404);
  t.is((await stranger.fetch('PUT', '/tmp/x', { body: 'x' })).status, 404);
  t.is((await stranger.call('GET', '/list?path=/')).status, 404);

  const { sandbox_id: own } = await createSandbox(api);
  const files = new Files(stack, api, own);
  await files.put('/tmp/kept', 'x');
  const watch = await files.watch('/tmp');
  const upload = request(files.url('/tmp/kept'), {
    method: 'PUT',
    headers: { ...files.headers, 'content-length': '1000000' },
  });
  upload.on('error', () => undefined);
  const answered = once(upload, 'response') as Promise<[IncomingMessage]>;
  upload.write('half');
  await api.data('POST', `${sandboxPath(own)}/pause?wait=true`);
  await watch.ended;
  t.is(watch.seen.at(-1), 'end sandbox_not_running');
  const [answer] = await answered;
  t.is(answer.statusCode, 409, await text(answer));
  const paused = await files.fetch('GET', '/tmp/kept');
  t.is(paused.status, 409);
  await api.data('POST', `${sandboxPath(own)}/resume?wait=true`);
  t.is((await files.get('/tmp/kept')).toString(), 'x');
  t.is((await outputOf(api, own, 'ls -A /tmp')).trim(), 'kept');
  await removeSandbox(api, own);
});

test('thousands of small files go up and come down, and a watch misses none of them', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const berth = new Berth({ baseUrl: api.baseUrl, apiKey: api.key });
  const { files } = await berth.sandboxes.get(id);
  await files.makeDirectory('/many');
  const watch = await files.watch('/many', { recursive: true });
  const created = new Set<string>();
  const watching = (async () => {
    for await (const { type, path } of watch) {
      if (type === 'created') created.add(path);
      if (type !== 'overflow') continue;
      for await (const each of files.list('/many', { recursive: true })) created.add(each.path);
    }
  })();
  const count = isFull ? 10_000 : 400;
  const paths = Array.from({ length: count }, (_, n) => `/many/${n % 100}/${n}`);
  const queue = paths.values();
  const writeSome = async (): Promise<void> => {
    for (const path of queue) await files.write(path, path, { parents: true });
  };
  await Promise.all(Array.from({ length: 8 }, writeSome));
  const missing = (): string[] => paths.filter((path) => !created.has(path));
  await waitFor('the last of them', async () => missing().length === 0, 60_000);
  watch.close();
  await watching;

  const listed: string[] = [];
  for await (const { path, type } of files.list('/many', { recursive: true, limit: 333 })) {
    if (type === 'file') listed.push(path);
  }
  t.deepEqual(listed.toSorted(), paths.toSorted());
  const reading = paths.values();
  const readSome = async (): Promise<void> => {
    for (const path of reading) {
      if ((await files.readText(path)) !== path) throw new Error(`${path} has other content`);
    }
  };
  await Promise.all(Array.from({ length: 8 }, readSome));
  await files.remove('/many', { recursive: true });
  await t.throwsAsync(files.stat('/many'), { instanceOf: NotFoundError });
  await removeSandbox(api, id);
});
