import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import MiniSearch from 'minisearch';
import { sha256 } from '../../../shared/secrets.ts';
import { DOCS, type Guide, readGuides, readPictures } from './guides.ts';
import { Html, html } from './html.ts';
import { layOut, type NavigationGroup, type Page } from './layout.ts';
import type { Section } from './markdown.ts';
import { type Description, type ReferencePage, referencePages } from './reference.ts';

/** A file of the site: those below `assets` have their content's hash in the path. */
export interface SiteContent {
  readonly path: string;
  readonly type: string;
  readonly content: string | Uint8Array;
}

const HASH_LENGTH = 16;
/** A guide of fewer parts needs no list of them. */
const PARTS_MIN = 4;

const readHere = (name: string): Promise<string> =>
  readFile(new URL(`browser/${name}`, import.meta.url), 'utf8');

const asset = (name: string, type: string, text: string): SiteContent => {
  const hash = sha256(text).slice(0, HASH_LENGTH);
  return { path: `${DOCS}/assets/${name.replace('.', `-${hash}.`)}`, type, content: text };
};

function searchIndex(pages: readonly (Page & { readonly sections: readonly Section[] })[]): string {
  const index = new MiniSearch<object>({
    fields: ['title', 'page', 'text'],
    storeFields: ['title', 'page', 'url'],
  });
  let id = 0;
  for (const { url, title: page, sections } of pages) {
    for (const { title, anchor, text } of sections) {
      id += 1;
      index.add({ id, title, text, page, url: anchor === '' ? url : `${url}#${anchor}` });
    }
  }
  return JSON.stringify(index);
}

function homePage(navigation: readonly NavigationGroup[]): Page {
  const groups = navigation.map(
    ({ title, entries }) =>
      html`<h2>${title}</h2>
        <ul>
          ${entries.map((entry) => html`<li><a href="${entry.url}">${entry.title}</a></li>`)}
        </ul> `,
  );
  return {
    url: DOCS,
    title: 'Documentation',
    body: html`<h1>Berth</h1>
      <p>
        Shared disks, commands that run on them, and persistent sandboxes. Begin with the
        <a href="${DOCS}/project/readme">README</a>; the
        <a href="${DOCS}/guides/api">API guide</a> says what the calls mean, the reference below has
        every field. The same description for programs is <a href="/openapi.json">openapi.json</a>.
      </p>
      ${groups}`,
  };
}

function navigationOf(
  reference: readonly ReferencePage[],
  guides: readonly Guide[],
): NavigationGroup[] {
  const of = (name: Guide['group']) => guides.filter(({ group }) => group === name);
  return [
    { title: 'API reference', entries: reference },
    { title: 'Guides', entries: of('Guides') },
    { title: 'TypeScript client', entries: of('TypeScript client') },
    { title: 'Architecture', entries: of('Architecture') },
    { title: 'Project', entries: of('Project') },
    { title: 'Decisions', entries: of('Decisions'), isLong: true },
  ];
}

/** A guide with a list of its parts, if it is a long one. */
function withContents({ body, sections, ...guide }: Guide): Guide {
  const parts = sections.filter(({ level, anchor }) => level === 2 && anchor !== '');
  if (parts.length < PARTS_MIN) return { ...guide, body, sections };
  const list = parts.map(({ title, anchor }) => html`<li><a href="#${anchor}">${title}</a></li>`);
  const contents = html`<details class="contents">
    <summary>On this page</summary>
    <ul>
      ${list}
    </ul>
  </details>`;
  const withList = body.text.replace('</h1>', () => `</h1>\n${contents.text}`);
  return { ...guide, body: new Html(withList), sections };
}

/** Makes the whole site. @param description of the API, as /openapi.json has it */
export async function buildSite(description: Description): Promise<SiteContent[]> {
  const guides = (await readGuides()).map(withContents);
  const reference = referencePages(description, DOCS);
  const navigation = navigationOf(reference, guides);
  const minisearch = await readFile(fileURLToPath(import.meta.resolve('minisearch')), 'utf8');
  const library = asset('minisearch.js', 'text/javascript', minisearch);
  const code = (await readHere('docs.js')).replace("'minisearch'", `'${library.path}'`);
  const script = asset('docs.js', 'text/javascript', code);
  const styles = asset('docs.css', 'text/css', await readHere('docs.css'));
  const index = asset('search.json', 'application/json', searchIndex([...reference, ...guides]));
  const urls = { script: script.path, styles: styles.path, index: index.path };
  const pages = [homePage(navigation), ...reference, ...guides].map((page) => {
    return { path: page.url, type: 'text/html', content: layOut(page, navigation, urls) };
  });
  const pictures = (await readPictures()).map(({ url, bytes }) => {
    return { path: url, type: 'image/png', content: bytes };
  });
  return [...pages, ...pictures, library, script, styles, index];
}
