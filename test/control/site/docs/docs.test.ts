import { access } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { readGuides } from '../../../../control/site/docs/guides.ts';
import { html } from '../../../../control/site/docs/html.ts';
import { renderMarkdown } from '../../../../control/site/docs/markdown.ts';

const root = join(import.meta.dirname, '../../../..');

test('every link of every guide leads to a file, and to a heading in it', async (t) => {
  const guides = await readGuides();
  const byFile = new Map(guides.map((guide) => [guide.file, guide]));
  const broken: string[] = [];
  for (const { file, links } of guides) {
    for (const link of links.filter((each) => !/^[a-z]+:/u.test(each))) {
      const [path = '', anchor] = link.split('#');
      const isThere = await access(join(root, path)).then(
        () => true,
        () => false,
      );
      const hasAnchor = anchor === undefined || byFile.get(path)?.anchors.has(anchor) === true;
      if (!isThere || !hasAnchor) broken.push(`${file}: ${link}`);
    }
  }
  t.deepEqual(broken, []);
  t.true(guides.length > 50);
});

const pageOf = (path: string): string | undefined =>
  path === 'docs/b.md' ? '/docs/guides/b' : undefined;

test('links lead to pages, and those to other files become text', (t) => {
  const source = '# A\n\n[b](b.md#part), [code](../agent/main.ts), [out](https://example.com/).';
  const { body, links } = renderMarkdown(source, 'docs/a.md', pageOf);
  t.true(body.text.includes('<a href="/docs/guides/b#part">b</a>, code, <a href="https://'));
  t.deepEqual(links, ['docs/b.md#part', 'agent/main.ts', 'https://example.com/']);
});

test('pictures are served below /docs, and must exist as links must', (t) => {
  const { body, links } = renderMarkdown('# A\n\n![b](console/b.png)', 'docs/a.md', pageOf);
  t.true(body.text.includes('<img src="/docs/console/b.png" alt="b"'));
  t.deepEqual(links, ['docs/console/b.png']);
});

test('headings have the anchors that GitHub gives them', (t) => {
  const source = '# A page\n\n## POST /api/exec\n\n### `code`, too\n\n## POST /api/exec\n';
  const { anchors, sections } = renderMarkdown(source, 'a.md', () => undefined);
  t.deepEqual([...anchors], ['a-page', 'post-apiexec', 'code-too', 'post-apiexec-1']);
  t.deepEqual(
    sections.map(({ anchor }) => anchor),
    ['', 'post-apiexec', 'code-too', 'post-apiexec-1'],
  );
});

test('no text becomes markup', (t) => {
  t.is(html`<p>${'<b>&"\''}</p>`.text, '<p>&lt;b&gt;&amp;&quot;&#39;</p>');
  const { body } = renderMarkdown(
    '# T\n\n<script>x</script> [x](javascript:alert)',
    'a.md',
    () => 'x',
  );
  t.notRegex(body.text, /<script|href="javascript/u);
});
