/**
 * Writes the reference pages of the client (docs/sdk/) from its TSDoc; with --check, says whether
 * they are current. An export without TSDoc is an error.
 */
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import ts from 'typescript';
import { REFERENCE_PAGES, type ReferencePage } from './reference-pages.ts';

const root = join(import.meta.dirname, '..');
const source = join(root, 'src');
const target = join(root, '../../docs/sdk');

const config = ts.readConfigFile(join(root, 'tsconfig.json'), (path) => ts.sys.readFile(path));
const { options } = ts.parseJsonConfigFileContent(config.config, ts.sys, root);
const program = ts.createProgram([join(source, 'index.ts')], options);
const checker = program.getTypeChecker();
const problems: string[] = [];

/** Page and anchor of each export, by its name. */
const places = new Map<string, string>();

const nameOf = (declaration: ts.Declaration): string =>
  ts.getNameOfDeclaration(declaration)?.getText() ?? '';
const isInternal = (node: ts.Node): boolean =>
  ts.getJSDocTags(node).some(({ tagName }) => tagName.text === 'internal');

function linked(text: string): string {
  return text.replaceAll(/\{@link ([\w.]+)\}/gu, (_, name: string) => {
    const place = places.get(name.split('.')[0] ?? '');
    return place === undefined ? `\`${name}\`` : `[\`${name}\`](${place})`;
  });
}

const oneLine = (text: string): string => text.replaceAll(/\s*\n\s*/gu, ' ').trim();

/** The comment before a declaration, of which the compiler's own view loses links and layout. */
function docOf(node: ts.Node): { text: string; tags: { name: string; text: string }[] } {
  const full = node.getSourceFile().getFullText();
  const [range] = (ts.getLeadingCommentRanges(full, node.getFullStart()) ?? [])
    .filter(({ pos }) => full.startsWith('/**', pos))
    .slice(-1);
  const raw = range === undefined ? '' : full.slice(range.pos + 3, range.end - 2);
  const lines = raw.split('\n').map((line) => line.replace(/^\s*\* ?/u, ''));
  const [text = '', ...rest] = lines
    .join('\n')
    .split(/(?:^|\s)@(?=(?:param|returns|throws|example)\b)/u);
  const tags = rest.map((tag) => {
    const [, name = '', content = ''] = /^(\w+)\s*([^]*)$/u.exec(tag) ?? [];
    return { name, text: content };
  });
  return { text: oneLine(text), tags };
}

function describe(node: ts.Node, name: string, isRequired: boolean): string {
  const { text, tags } = docOf(node);
  if (isRequired && text === '' && tags.length === 0) {
    const { fileName } = node.getSourceFile();
    problems.push(`${relative(root, fileName)}: ${name} is exported without a word about it`);
  }
  const listed = tags
    .filter((tag) => tag.name !== 'example')
    .map((tag) => {
      const content = linked(oneLine(tag.text));
      if (tag.name === 'returns') return `- Returns ${content}`;
      if (tag.name === 'throws') return `- Throws ${content}`;
      const [parameter = '', ...more] = content.split(' ');
      return `- \`${parameter}\`: ${more.join(' ')}`;
    });
  const examples = tags
    .filter((tag) => tag.name === 'example')
    .map((tag) => `\`\`\`ts\n${tag.text.trim()}\n\`\`\``);
  return [linked(text), listed.join('\n'), ...examples].filter((part) => part !== '').join('\n\n');
}

const typeOf = (node: ts.Node): string => checker.typeToString(checker.getTypeAtLocation(node));

function parameterText(parameter: ts.ParameterDeclaration): string {
  const { name, type, initializer, questionToken } = parameter;
  const mayBeLeftOut = initializer !== undefined || questionToken !== undefined;
  const shown = ts.isIdentifier(name) ? name.text : 'options';
  return `${shown}${mayBeLeftOut ? '?' : ''}: ${oneLine(type?.getText() ?? typeOf(parameter))}`;
}

const returnTypeText = (node: ts.SignatureDeclaration): string =>
  oneLine(node.type?.getText() ?? typeOf(node));

function signatureText(node: ts.SignatureDeclaration, name: string): string {
  const parameters = node.parameters.map(parameterText);
  const returned = ts.isConstructorDeclaration(node) ? '' : `: ${returnTypeText(node)}`;
  const short = `${name}(${parameters.join(', ')})${returned}`;
  if (short.length <= 100) return short;
  return `${name}(\n${parameters.map((parameter) => `  ${parameter},\n`).join('')})${returned}`;
}

const isHidden = (member: ts.ClassElement | ts.TypeElement): boolean =>
  isInternal(member) ||
  (member.name !== undefined && ts.isPrivateIdentifier(member.name)) ||
  (ts.canHaveModifiers(member) &&
    (ts.getModifiers(member) ?? []).some(({ kind }) => kind === ts.SyntaxKind.PrivateKeyword));

const code = (text: string): string => `\`\`\`ts\n${text}\n\`\`\``;
const cell = (text: string): string => text.replaceAll('|', String.raw`\|`);

function fieldTable(fields: readonly (ts.ClassElement | ts.TypeElement)[]): string {
  const rows = fields.map((field) => {
    const typed = field as
      | ts.PropertySignature
      | ts.PropertyDeclaration
      | ts.GetAccessorDeclaration;
    const optional = 'questionToken' in typed && typed.questionToken !== undefined ? '?' : '';
    const type = ts.isMethodSignature(field)
      ? `(${field.parameters.map(parameterText).join(', ')}) => ${returnTypeText(field)}`
      : oneLine(typed.type?.getText() ?? typeOf(field));
    const about = cell(describe(field, nameOf(field), false).replaceAll(/\s*\n+/gu, ' '));
    return `| \`${nameOf(field)}${optional}\` | \`${cell(type.replace(/ \| undefined$/u, ''))}\` | ${about} |`;
  });
  return rows.length === 0 ? '' : ['| | Type | |', '|---|---|---|', ...rows].join('\n');
}

const isField = (member: ts.ClassElement | ts.TypeElement): boolean =>
  ts.isPropertyDeclaration(member) || ts.isPropertySignature(member) || ts.isGetAccessor(member);

const heritageOf = (node: ts.ClassDeclaration | ts.InterfaceDeclaration): string =>
  (node.heritageClauses ?? []).map((clause) => ` ${oneLine(clause.getText())}`).join('');

function showClass(node: ts.ClassDeclaration): string {
  const name = nameOf(node);
  const members = node.members.filter((member) => !isHidden(member));
  const methods = members.filter(
    (member) => ts.isMethodDeclaration(member) || ts.isConstructorDeclaration(member),
  );
  const shown = methods.map((method) => {
    const called = ts.isConstructorDeclaration(method) ? `new ${name}` : nameOf(method);
    const plain = called.replaceAll(/^\[|\]$/gu, '');
    const isKnown = ts.isConstructorDeclaration(method) || called.startsWith('[');
    const about = describe(method, `${name}.${called}`, !isKnown);
    return [
      `### ${called.startsWith('new ') ? called : `${name}.${plain}`}`,
      code(signatureText(method, called)),
      about,
    ]
      .filter((part) => part !== '')
      .join('\n\n');
  });
  const head = code(`class ${name}${heritageOf(node)}`);
  return [head, describe(node, name, true), fieldTable(members.filter(isField)), ...shown]
    .filter((part) => part !== '')
    .join('\n\n');
}

function showInterface(node: ts.InterfaceDeclaration): string {
  const fields = node.members.filter((member) => !isHidden(member));
  const head = code(`interface ${nameOf(node)}${heritageOf(node)}`);
  return [head, describe(node, nameOf(node), true), fieldTable(fields)]
    .filter((part) => part !== '')
    .join('\n\n');
}

function show(node: ts.Declaration): string {
  if (ts.isClassDeclaration(node)) return showClass(node);
  if (ts.isInterfaceDeclaration(node)) return showInterface(node);
  if (ts.isTypeAliasDeclaration(node)) {
    return [code(node.getText().replace(/^export /u, '')), describe(node, nameOf(node), true)].join(
      '\n\n',
    );
  }
  if (ts.isFunctionDeclaration(node)) {
    return [
      code(`function ${signatureText(node, nameOf(node))}`),
      describe(node, nameOf(node), true),
    ].join('\n\n');
  }
  throw new Error(`${nameOf(node)} is of a kind that the reference does not show yet`);
}

/** Bodies and answers: each is a schema of the API. */
function showTypes(declarations: readonly ts.Declaration[]): string {
  const rows = declarations.map((node) => {
    const [, schema = ''] = /\['(\w+)'\]/u.exec(node.getText()) ?? [];
    return `| \`${nameOf(node)}\` | \`${schema}\` |`;
  });
  return ['| Type | Schema of the API |', '|---|---|', ...rows].join('\n');
}

/** Classes come first. */
const rankOf = (node: ts.Declaration): number => (ts.isClassDeclaration(node) ? 0 : 1);

function exportsByFile(): Map<string, ts.Declaration[]> {
  const index = program.getSourceFile(join(source, 'index.ts'));
  const module = index === undefined ? undefined : checker.getSymbolAtLocation(index);
  const found = new Map<string, ts.Declaration[]>();
  for (const exported of module === undefined ? [] : checker.getExportsOfModule(module)) {
    const isAlias = (exported.flags & ts.SymbolFlags.Alias) !== 0;
    const symbol = isAlias ? checker.getAliasedSymbol(exported) : exported;
    const [declaration] = symbol.declarations ?? [];
    if (declaration === undefined) throw new Error(`${exported.name} is not declared`);
    const file = relative(source, declaration.getSourceFile().fileName);
    found.set(file, [...(found.get(file) ?? []), declaration]);
  }
  for (const declarations of found.values()) {
    declarations.sort((one, other) => rankOf(one) - rankOf(other) || one.pos - other.pos);
  }
  return found;
}

function write(page: ReferencePage, declarations: readonly ts.Declaration[]): string {
  const isTypes = page.name === 'types';
  const parts = isTypes
    ? [showTypes(declarations)]
    : declarations.map((node) => `## ${nameOf(node)}\n\n${show(node)}`);
  const origin = '`npm run generate` writes this page from the comments in `clients/sdk/src`.';
  const intro = `${page.about} [The guide](../sdk.md) says how it is used. ${origin}`;
  return `${[`# ${page.title}`, intro, ...parts].join('\n\n')}\n`;
}

const found = exportsByFile();
const declarationsOf = ({ sources }: ReferencePage): ts.Declaration[] =>
  sources.flatMap((file) => found.get(file) ?? []);
for (const page of REFERENCE_PAGES) {
  const isTypes = page.name === 'types';
  for (const node of declarationsOf(page)) {
    const anchor = isTypes ? '' : `#${nameOf(node).toLowerCase()}`;
    places.set(nameOf(node), `${page.name}.md${anchor}`);
  }
}
for (const file of found.keys()) {
  const isShown = REFERENCE_PAGES.some(({ sources }) => sources.includes(file));
  if (!isShown) problems.push(`src/${file} has no page: add it to scripts/reference-pages.ts`);
}
const pages = new Map(
  REFERENCE_PAGES.map((page) => [`${page.name}.md`, write(page, declarationsOf(page))]),
);

if (process.argv.includes('--check')) {
  const there = await readdir(target).catch(() => []);
  for (const name of new Set([...there, ...pages.keys()])) {
    const text = await readFile(join(target, name), 'utf8').catch(() => undefined);
    if (text !== pages.get(name))
      problems.push(`docs/sdk/${name} is not current: run npm run generate`);
  }
} else if (problems.length === 0) {
  await rm(target, { recursive: true, force: true });
  await mkdir(target);
  for (const [name, text] of pages) await writeFile(join(target, name), text);
}
for (const problem of problems) console.error(problem);
process.exitCode = problems.length > 0 ? 1 : 0;
