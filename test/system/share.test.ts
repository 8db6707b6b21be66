import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { Stack } from '../helpers/stack.ts';

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient }>;
test.before(async (t) => {
  t.context.stack = await Stack.start();
  t.context.api = await t.context.stack.newClient();
});
test.after.always(async (t) => {
  await t.context.stack.stop();
});
test('smoke', async (t) => {
  const { api, stack } = t.context;
  const disk = await createDisk(api);
  await exec(api, disk.id, 'echo hello world > a.txt; truncate -s 200M big');
  const { url } = await api.data<{ url: string }>('POST', `/api/disks/${disk.id}/share`, {
    key: '/a.txt',
  });
  t.log(url);
  const { url: big } = await api.data<{ url: string }>('POST', `/api/disks/${disk.id}/share`, {
    key: 'big',
  });
  for (const headers of [
    {},
    { range: 'bytes=0-3' },
    { range: 'bytes=0-1,4-5' },
    { range: 'bytes=99-' },
    { 'if-match': '"x"' },
  ]) {
    const r = await fetch(url, { headers: headers as Record<string, string> });
    t.log(r.status, Object.fromEntries(r.headers), await r.text());
  }
  const h = await fetch(url, { method: 'HEAD' });
  t.log(h.status, Object.fromEntries(h.headers), (await h.text()).length);
  for (let i = 0; i < 3; i++) {
    const t0 = performance.now();
    const b = await fetch(big);
    let n = 0;
    for await (const c of b.body!) n += c.length;
    t.log(n, performance.now() - t0, 'ms');
  }
  t.log(
    (await stack.control.readLog())
      .split('\n')
      .filter((l) => l.includes('hared'))
      .at(-1),
  );
});
