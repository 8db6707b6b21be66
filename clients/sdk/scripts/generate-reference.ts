/** Writes the client's reference into docs/sdk, a page for each module of src/exports. */
import { mkdir, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import {
  Application,
  type Context,
  Converter,
  DeclarationReflection,
  type TypeDocOptions,
} from 'typedoc';
import type { PluginOptions } from 'typedoc-plugin-markdown';
import { renderMarkdown } from '../../../control/site/docs/markdown.ts';
import { replaceFile } from '../../../scripts/env-file.ts';

const root = join(import.meta.dirname, '..');
const local = join(root, '../../.local');
const target = join(root, '../../docs/sdk');

const options: TypeDocOptions & Partial<PluginOptions> = {
  name: '@berth/sdk: reference',
  tsconfig: join(root, 'tsconfig.json'),
  entryPoints: [join(root, 'src/exports/*.ts')],
  readme: 'none',
  excludeExternals: true,
  excludeInternal: true,
  excludePrivate: true,
  disableSources: true,
  sort: ['kind', 'source-order'],
  requiredToBeDocumented: ['Class', 'Interface'],
  validation: { notDocumented: true, notExported: false },
  treatWarningsAsErrors: true,
  logLevel: 'Warn',
  plugin: ['typedoc-plugin-markdown'],
  router: 'module',
  entryFileName: 'index',
  pageTitleTemplates: { module: '@berth/sdk: {name}' },
  hidePageHeader: true,
  hideBreadcrumbs: true,
  hideGroupHeadings: true,
  useCodeBlocks: true,
  expandParameters: true,
  parametersFormat: 'table',
  interfacePropertiesFormat: 'table',
  classPropertiesFormat: 'table',
};
const app = await Application.bootstrapWithPlugins(options);
// Inherited members are described where they are declared. Runs after TypeDoc has marked them.
const last = -10_000;
app.converter.on(
  Converter.EVENT_RESOLVE_BEGIN,
  ({ project }: Context) => {
    for (const member of Object.values(project.reflections)) {
      const isInherited = member instanceof DeclarationReflection && member.inheritedFrom;
      if (isInherited) project.removeReflection(member);
    }
  },
  last,
);
const project = await app.convert();
if (project !== undefined) app.validate(project);
if (project === undefined || app.logger.hasErrors() || app.logger.hasWarnings()) {
  throw new Error('the client reference has problems');
}
await mkdir(local, { recursive: true });
const fresh = await mkdtemp(join(local, 'reference-'));
try {
  app.options.setValue('outputs', [{ name: 'markdown', path: fresh }]);
  await app.generateOutputs(project);
  await mkdir(target, { recursive: true });
  const names = await readdir(fresh);
  const texts = new Map<string, string>();
  for (const name of names) {
    const text = await readFile(join(fresh, name), 'utf8');
    // Control's pages show HTML, such as anchors of table rows, as text, and rule off headings.
    texts.set(name, text.replaceAll(/<a id="[^"]*"><\/a> |^\*{3}\n\n/gmu, ''));
  }
  const anchors = new Map(
    [...texts].map(([name, text]) => [name, renderMarkdown(text, name, () => undefined).anchors]),
  );
  for (const [name, text] of texts) {
    // The plugin counts `Process.exit` and `ProcessExit` as one heading, and numbers the latter.
    const linked = text.replaceAll(
      /\((\S+\.md)?#(\S+)-\d+\)/gu,
      (link, page: string | undefined, anchor: string) =>
        anchors.get(page ?? name)?.has(link.slice(link.indexOf('#') + 1, -1)) === true
          ? link
          : `(${page ?? ''}#${anchor})`,
    );
    await replaceFile(join(target, name), linked);
  }
  for (const name of await readdir(target)) {
    if (name.endsWith('.md') && !texts.has(name)) await rm(join(target, name), { force: true });
  }
} finally {
  await rm(fresh, { recursive: true });
}
