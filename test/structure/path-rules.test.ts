/* A rule that names a path matches nothing once its files have moved, and says nothing. */
import { glob, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';

const root = join(import.meta.dirname, '../..');

async function readSettings(name: string): Promise<unknown> {
  const text = await readFile(join(root, name), 'utf8');
  return JSON.parse(text.replaceAll(/^\s*\/\/.*$/gmu, ''));
}

async function matchesSome(t: ExecutionContext, patterns: readonly string[]): Promise<void> {
  t.true(patterns.length > 0);
  for (const pattern of patterns) {
    const found = await Array.fromAsync(glob(pattern, { cwd: root, exclude: ['node_modules'] }));
    t.not(found.length, 0, pattern);
  }
}

test('each override of the linter has files', async (t) => {
  const { overrides } = (await readSettings('.oxlintrc.json')) as {
    overrides: { files: string[] }[];
  };
  await matchesSome(
    t,
    overrides.flatMap(({ files }) => files),
  );
});

test('each entry of knip is there', async (t) => {
  const { workspaces } = (await readSettings('knip.json')) as {
    workspaces: Record<string, { entry?: string[]; project: string[] }>;
  };
  const patterns = Object.entries(workspaces).flatMap(([folder, { entry = [], project }]) =>
    [...entry, ...project].map((pattern) => join(folder, pattern)),
  );
  await matchesSome(
    t,
    patterns.flatMap((pattern) => {
      const [, before = '', names, after = ''] = /^(.*)\{([^}]*)\}(.*)$/u.exec(pattern) ?? [];
      return names?.split(',').map((name) => `${before}${name}${after}`) ?? [pattern];
    }),
  );
});
