import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type RenderedMarkdown, renderMarkdown } from './markdown.ts';

const root = join(import.meta.dirname, '../../..');
export const DOCS = '/docs';

/** The file of the repository and its page. */
export interface Guide extends RenderedMarkdown {
  /** From the root of the repository. */
  readonly file: string;
  readonly url: string;
  readonly group: 'Guides' | 'TypeScript client' | 'Architecture' | 'Project' | 'Decisions';
}

const INDEX = 'README.md';
const PICTURES = 'docs/console';
const PROJECT = ['README.md', 'CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md'];

/** The pictures of the guides; their pages are below `/docs`, as the files are below `docs/`. */
export async function readPictures(): Promise<{ url: string; bytes: Buffer }[]> {
  const names = (await readdir(join(root, PICTURES))).filter((name) => name.endsWith('.png'));
  return Promise.all(
    names.map(async (name) => {
      const file = `${PICTURES}/${name}`;
      return { url: `/${file}`, bytes: await readFile(join(root, file)) };
    }),
  );
}

/** By name, after the index of the directory. */
async function markdownIn(directory: string): Promise<string[]> {
  const names = (await readdir(join(root, directory))).filter((name) => name.endsWith('.md'));
  const others = names.filter((name) => name !== INDEX).toSorted();
  const ordered = names.includes(INDEX) ? [INDEX, ...others] : others;
  return ordered.map((name) => `${directory}/${name}`);
}

function urlOf(file: string): string {
  const name = file.replace(/^docs\//u, '').replace(/\.md$/u, '');
  if (!file.startsWith('docs/')) return `${DOCS}/project/${name.toLowerCase()}`;
  return name.includes('/') ? `${DOCS}/${name}` : `${DOCS}/guides/${name}`;
}

function groupOf(file: string): Guide['group'] {
  if (!file.startsWith('docs/')) return 'Project';
  if (file.startsWith('docs/decisions/')) return 'Decisions';
  if (file.startsWith('docs/architecture')) return 'Architecture';
  return file.startsWith('docs/sdk/') ? 'TypeScript client' : 'Guides';
}

/** Renders the guides, the decisions, and the files about the project. */
export async function readGuides(): Promise<Guide[]> {
  const files = [
    ...(await markdownIn('docs')),
    ...(await markdownIn('docs/architecture')),
    ...(await markdownIn('docs/sdk').catch(() => [])), // Set-up makes them.
    ...PROJECT,
    ...(await markdownIn('docs/decisions')),
  ];
  const urls = new Map(files.map((file) => [file, urlOf(file)]));
  return Promise.all(
    files.map(async (file) => {
      const source = await readFile(join(root, file), 'utf8');
      const rendered = renderMarkdown(source, file, (path) => urls.get(path));
      return { ...rendered, file, url: urlOf(file), group: groupOf(file) };
    }),
  );
}
