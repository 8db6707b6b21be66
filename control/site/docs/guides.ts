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
  readonly group: 'Guides' | 'TypeScript client' | 'Project' | 'Decisions';
}

const PROJECT = ['README.md', 'CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md'];

const markdownIn = async (directory: string): Promise<string[]> =>
  (await readdir(join(root, directory)))
    .filter((name) => name.endsWith('.md'))
    .toSorted()
    .map((name) => `${directory}/${name}`);

function urlOf(file: string): string {
  const name = file.replace(/^docs\//u, '').replace(/\.md$/u, '');
  if (!file.startsWith('docs/')) return `${DOCS}/project/${name.toLowerCase()}`;
  return name.includes('/') ? `${DOCS}/${name}` : `${DOCS}/guides/${name}`;
}

function groupOf(file: string): Guide['group'] {
  if (!file.startsWith('docs/')) return 'Project';
  if (file.startsWith('docs/decisions/')) return 'Decisions';
  return file.startsWith('docs/sdk/') ? 'TypeScript client' : 'Guides';
}

/** Renders the guides, the decisions, and the files about the project. */
export async function readGuides(): Promise<Guide[]> {
  const files = [
    ...(await markdownIn('docs')),
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
