/* The documentation as browsers get it, with nothing in reach but control. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { brotliDecompressSync, gunzipSync } from 'node:zlib';
import anyTest, { type TestFn } from 'ava';
import { WatchedPage } from '../helpers/devtools.ts';
import { download } from '../helpers/shares.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const test = anyTest as TestFn<{ stack: Stack; directory: string; page: WatchedPage }>;

test.before(async (t) => {
  const directory = await mkdtemp(join(tmpdir(), 'berth-test-docs-'));
  const stack = await Stack.start();
  t.context = { stack, directory, page: await WatchedPage.open(directory) };
});

test.after.always(async (t) => {
  const { stack, directory, page } = t.context as Partial<typeof t.context>;
  await page?.[Symbol.asyncDispose]();
  await stack?.stop();
  if (directory !== undefined) await rm(directory, { recursive: true });
});

test.serial('every page loads without an error or a request to anywhere else', async (t) => {
  const { page, stack } = t.context;
  const start = `${stack.baseUrl}/docs`;
  await page.goTo(start);
  const listed = await page.evaluate(
    "[...document.querySelectorAll('nav a')].map(({ href }) => href)",
  );
  const urls = listed as string[];
  t.true(urls.length > 50);
  for (const url of urls) {
    await page.goTo(url);
    const found = await page.evaluate(`({
      title: document.querySelector('main h1')?.textContent ?? '',
      isStyled: getComputedStyle(document.body).display === 'grid',
      isWide: document.documentElement.scrollWidth > innerWidth,
    })`);
    t.like(found, { isStyled: true, isWide: false }, url);
    t.not((found as { title: string }).title, '', url);
  }
  const elsewhere = page.requests.filter(
    (url) => !url.startsWith(`${stack.baseUrl}/`) && url !== 'data:,',
  );
  t.deepEqual(elsewhere, []);
  t.deepEqual(page.problems, []);
});

test.serial('no script runs that is written into a page', async (t) => {
  const { page, stack } = t.context;
  await page.goTo(`${stack.baseUrl}/docs`);
  await page.evaluate(`{
    const script = document.createElement('script');
    script.textContent = 'globalThis.hasRun = true';
    document.body.append(script);
  }`);
  t.is(await page.evaluate('globalThis.hasRun === true'), false);
  await waitFor('the violation', async () => page.problems.length > 0);
  t.regex(page.problems.splice(0).join(), /Content Security Policy/u);
});

test.serial('search finds guides and operations, and leads to them', async (t) => {
  const { page, stack } = t.context;
  const search = async (words: string): Promise<string> => {
    await page.goTo(`${stack.baseUrl}/docs`);
    await page.evaluate(`{
      const input = document.querySelector('#search input');
      input.value = ${JSON.stringify(words)};
      input.dispatchEvent(new Event('input'));
    }`);
    const first = "document.querySelector('#found a')?.href";
    return waitFor('an entry', async () => (await page.evaluate(first)) as string | undefined);
  };
  t.is(await search('idempotency key'), `${stack.baseUrl}/docs/guides/api#idempotency-key`);
  t.is(
    await search('execOnDisks'),
    `${stack.baseUrl}/docs/reference/serverless-execution#execOnDisks`,
  );
  t.deepEqual(page.problems, []);
});

test.serial('a trial in the reference is answered by this server', async (t) => {
  const { page, stack } = t.context;
  const api = await stack.newClient();
  await page.goTo(`${stack.baseUrl}/docs/reference/disks`);
  await page.evaluate(`{
    const form = document.querySelector('form[data-method=POST][data-path="/api/disks"]');
    form.elements.key.value = ${JSON.stringify(api.key)};
    form.elements.body.value = '{"name":"tried"}';
    form.requestSubmit();
  }`);
  const output = `document.querySelector('form[data-path="/api/disks"][data-method=POST] output').textContent`;
  await waitFor('the answer', async () =>
    String(await page.evaluate(output)).startsWith('201 Created'),
  );
  t.deepEqual(page.problems, []);
});

test('files are compressed, may be kept, and are not sent again', async (t) => {
  const { stack } = t.context;
  const url = `${stack.baseUrl}/docs`;
  const plain = await download(url);
  t.like(plain, { status: 200 });
  t.like(plain.headers, { 'content-type': 'text/html; charset=utf-8', vary: 'Accept-Encoding' });
  t.regex(
    String(plain.headers['content-security-policy']),
    /^default-src 'none'; script-src 'self'/u,
  );
  const [br, gz] = await Promise.all(
    ['br, gzip', 'gzip'].map((coding) => download(url, { 'accept-encoding': coding })),
  );
  t.is(br?.headers['content-encoding'], 'br');
  t.deepEqual(br && brotliDecompressSync(br.body), plain.body);
  t.deepEqual(gz && gunzipSync(gz.body), plain.body);
  const again = await download(url, { 'if-none-match': String(plain.headers.etag) });
  t.like(again, { status: 304 });
  t.is(again.body.length, 0);
  const [, asset = ''] = /href="(\/docs\/assets\/[^"]+\.css)"/u.exec(plain.body.toString()) ?? [];
  const styles = await download(`${stack.baseUrl}${asset}`);
  t.regex(String(styles.headers['cache-control']), /immutable/u);
});

test('the root leads browsers to the documentation, and tells programs where it is', async (t) => {
  const { stack } = t.context;
  const browser = await download(`${stack.baseUrl}/`, { accept: 'text/html,*/*' });
  t.like(browser, { status: 302 });
  t.is(browser.headers.location, '/docs');
  const program = await download(`${stack.baseUrl}/`, { accept: '*/*' });
  t.is(program.status, 404);
  t.regex(program.body.toString(), /\/docs and \/openapi\.json/u);
  t.is((await download(`${stack.baseUrl}/docs/nothing`)).status, 404);
});
