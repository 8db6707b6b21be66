/* The configuration of a local stack, and what becomes of an existing one. */
import { execFile } from 'node:child_process';
import { mkdir, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';
import { readEnvFile } from '../../scripts/env-file.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';

const run = promisify(execFile);
const root = join(import.meta.dirname, '../..');

/** Sets up a checkout that has this configuration. @returns the configuration then */
async function configure(kept: string | undefined): Promise<Readonly<Record<string, string>>> {
  await using directory = await temporaryDirectory();
  const { path } = directory;
  for (const name of ['scripts', 'shared', 'node_modules', 'package.json']) {
    await symlink(join(root, name), join(path, name));
  }
  await mkdir(join(path, '.local'));
  const config = join(path, '.local/config.env');
  if (kept !== undefined) await writeFile(config, kept);
  const script = join(path, 'scripts/local-config.ts');
  const flags = ['--preserve-symlinks', '--preserve-symlinks-main'];
  await run(process.execPath, [...flags, script, '/image', '/disk', '/guest'], {
    env: { PATH: process.env['PATH'] },
  });
  return readEnvFile(config);
}

async function networksAfter(kept: string | undefined): Promise<string | undefined> {
  const lines = `REGION=a-b\nBUCKET_REACHABLE_NETWORKS=${kept}\n`;
  return (await configure(kept === undefined ? undefined : lines))['BUCKET_REACHABLE_NETWORKS'];
}

test('a local stack reaches no buckets at private addresses, unless its owner named some', async (t) => {
  t.is(await networksAfter(undefined), '');
  t.is(await networksAfter('127.0.0.0/8'), '', 'the former default');
  t.is(await networksAfter('127.0.0.1/32:9000'), '127.0.0.1/32:9000');
});
