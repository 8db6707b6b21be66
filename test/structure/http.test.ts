/* How the sources serve HTTP. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';

const root = join(import.meta.dirname, '../..');

const sources = await Promise.all(
  ['agent', 'control', 'shared'].map(async (tree) => {
    const entries = await readdir(join(root, tree), { recursive: true });
    const names = entries.filter((name) => name.endsWith('.ts')).map((name) => join(tree, name));
    return Promise.all(
      names.map(async (name) => ({ name, text: await readFile(join(root, name), 'utf8') })),
    );
  }),
).then((all) => all.flat());

/** The values, not types, that a file imports from these modules of Node, as it names them. */
const importsOf = (text: string, modules: RegExp): string =>
  [...text.matchAll(/import (?!type )([^;]*?) from '([^']+)'/gu)]
    .filter(([, , from = '']) => modules.test(from))
    .map(([, what = '']) => what.replaceAll(/\btype \w+/gu, ''))
    .join();

test('all requests are begun where their failures have a listener', (t) => {
  const begins = sources.filter(({ text }) =>
    /\b(?:request|get|ClientRequest)\b|\*|\w+ *$/u.test(importsOf(text, /^node:https?$/u)),
  );
  t.deepEqual(
    begins.map(({ name }) => name),
    ['shared/http/send-request.ts'],
  );
});

test('all HTTP servers make their responses byte for byte', (t) => {
  const servers = sources.filter(({ text }) =>
    /\bcreateServer\b/u.test(importsOf(text, /^node:https?$/u)),
  );
  t.true(servers.length >= 4);
  for (const { name, text } of servers) t.regex(text, /[.(]STRICT_HTTP\b/u, name);
  for (const { name, text } of sources) t.notRegex(text, /new ServerResponse\(/u, name);
});
