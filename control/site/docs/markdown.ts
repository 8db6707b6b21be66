import { dirname, join } from 'node:path/posix';
import createMarkdown, { type Token } from 'markdown-it';
import { escapeHtml, Html } from './html.ts';

/** A part of a page that search finds: a heading with the text below it. */
export interface Section {
  readonly title: string;
  /** Within the page; empty for what comes before the first heading below the title. */
  readonly anchor: string;
  /** Level of its heading. */
  readonly level: number;
  readonly text: string;
}

export interface RenderedMarkdown {
  readonly title: string;
  readonly body: Html;
  readonly sections: readonly Section[];
  readonly anchors: ReadonlySet<string>;
  /** Where it links to: URLs as written, paths from the root of the repository. */
  readonly links: readonly string[];
}

/** The page of a file of the repository, and the anchor in it; undefined when it has none. */
type PageUrl = (path: string) => string | undefined;

/** Deeper headings, such as the parameters of a method, begin no section of their own. */
const LEVEL_MAX = 4;

const markdown = createMarkdown({ html: false, linkify: false });

/** The anchor that GitHub gives a heading. */
const slugOf = (title: string): string =>
  title
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
    .trim()
    .replaceAll(/\s/gu, '-');

const plainText = (tokens: readonly Token[] | null | undefined): string =>
  (tokens ?? [])
    .map(({ content, children }) => (children ? plainText(children) : content))
    .join('');

/** Gives headings their anchors. */
function addAnchors(tokens: readonly Token[]): Map<Token, string> {
  const anchors = new Map<Token, string>();
  const counts = new Map<string, number>();
  for (const [index, token] of tokens.entries()) {
    if (token.type !== 'heading_open') continue;
    const slug = slugOf(plainText(tokens[index + 1]?.children));
    const count = counts.get(slug) ?? 0;
    counts.set(slug, count + 1);
    const anchor = count === 0 ? slug : `${slug}-${count}`;
    anchors.set(token, anchor);
    token.attrSet('id', anchor);
  }
  return anchors;
}

const isForeign = (href: string): boolean => /^[a-z]+:/u.test(href);

/**
 * Leads links to pages, and pictures to their files below `/docs`; a link to any other file of the
 * repository becomes plain text.
 */
function leadLinks(tokens: readonly Token[], file: string, urlOf: PageUrl): string[] {
  const links: string[] = [];
  for (const { children } of tokens) {
    let isDropped = false;
    for (const token of children ?? []) {
      if (token.type === 'image') {
        const target = join(dirname(file), String(token.attrGet('src') ?? ''));
        token.attrSet('src', `/${target}`);
        links.push(target);
      }
      if (token.type === 'link_open') {
        const href = String(token.attrGet('href') ?? '');
        const [path = '', anchor] = href.split('#');
        const target = path === '' ? file : join(dirname(file), path);
        const known = isForeign(href) ? href : urlOf(target);
        links.push(isForeign(href) ? href : `${target}${anchor === undefined ? '' : `#${anchor}`}`);
        isDropped = known === undefined;
        const suffix = isForeign(href) || anchor === undefined ? '' : `#${anchor}`;
        if (known !== undefined) token.attrSet('href', `${known}${suffix}`);
      }
      if (isDropped && /^link_(?:open|close)$/u.test(token.type)) token.type = 'text';
    }
  }
  return links;
}

function sectionsOf(tokens: readonly Token[], anchors: ReadonlyMap<Token, string>): Section[] {
  const sections: { title: string; anchor: string; level: number; text: string }[] = [];
  for (const [index, token] of tokens.entries()) {
    const level = Number(token.tag.slice(1));
    if (token.type === 'heading_open' && level <= LEVEL_MAX) {
      const title = plainText(tokens[index + 1]?.children);
      const anchor = sections.length === 0 ? '' : (anchors.get(token) ?? '');
      sections.push({ title, anchor, level, text: '' });
    } else if (token.type === 'inline' || token.type === 'fence') {
      const last = sections.at(-1);
      const text = token.type === 'fence' ? token.content : plainText(token.children);
      if (last !== undefined && tokens[index - 1]?.type !== 'heading_open') last.text += `${text} `;
    }
  }
  return sections;
}

/**
 * Wide tables and code scroll by themselves, not the page; whoever has no mouse gets there, too.
 */
markdown.renderer.rules['table_open'] = () => '<div class="scroll" tabindex="0"><table>';
markdown.renderer.rules['table_close'] = () => '</table></div>';
markdown.renderer.rules['fence'] = (tokens, index) =>
  `<pre tabindex="0"><code>${escapeHtml(tokens[index]?.content ?? '')}</code></pre>`;

/** Text of one line, as descriptions of the API have it. */
export const renderInline = (text: string): Html => new Html(markdown.renderInline(text));

/**
 * Renders a file of the repository.
 * @param file its path from the root of the repository
 */
export function renderMarkdown(source: string, file: string, urlOf: PageUrl): RenderedMarkdown {
  const env = {};
  const tokens = markdown.parse(source, env);
  const anchors = addAnchors(tokens);
  const links = leadLinks(tokens, file, urlOf);
  const sections = sectionsOf(tokens, anchors);
  return {
    title: sections[0]?.title ?? file,
    body: new Html(markdown.renderer.render(tokens, markdown.options, env)),
    sections,
    anchors: new Set(anchors.values()),
    links,
  };
}
