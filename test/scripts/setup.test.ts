/*
 * Set-up repeated in a checkout whose stack runs: in a copy of this checkout, with ports and
 * directories of its own.
 */
import { execFile } from 'node:child_process';
import { chmod, cp, mkdir, mkdtemp, readFile, rm, stat, symlink, utimes } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';
import { readEnvFile, required } from '../../scripts/env-file.ts';
import { paths } from '../../scripts/local-paths.ts';
import { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { freePorts } from '../helpers/ports.ts';
import { createSandbox, outputOf, removeSandbox } from '../helpers/sandboxes.ts';
import { provideTemplates } from '../helpers/templates.ts';

const COPIED = [
  ...['agent', 'clients', 'control', 'docs', 'scripts', 'shared'],
  ...['.local/console', '.local/generated'],
  ...['Procfile', 'package.json', 'package-lock.json', 'tsconfig.json'],
];
const PORTS = ['REDIS', 'CONTROL', 'CONTROL_INTERNAL', 'AGENT', 'AGENT_ADMIN', 'INGRESS'];
const COMMANDS = 20;

/** A copy of this checkout that is built, so that its set-up has nothing to do. */
async function copyCheckout(): Promise<string> {
  const root = await mkdtemp(join(tmpdir(), 'berth-test-'));
  await chmod(root, 0o711);
  await mkdir(join(root, '.local'));
  for (const name of COPIED) {
    const [from, to] = [join(paths.root, name), join(root, name)];
    await cp(from, to, { recursive: true, preserveTimestamps: true, verbatimSymlinks: true });
  }
  await symlink(join(paths.root, 'node_modules'), join(root, 'node_modules'));
  return root;
}

test('set-up repeated beside a running stack disturbs nothing, or refuses', async (t) => {
  t.timeout(600_000);
  await using undo = new AsyncDisposableStack();
  const root = await copyCheckout();
  undo.defer(() => rm(root, { recursive: true, force: true }));
  const ports = await freePorts(PORTS.length);
  const env = {
    ...process.env,
    ...Object.fromEntries(PORTS.map((name, index) => [`${name}_PORT`, String(ports[index])])),
  };
  const script = async (name: string, ...args: readonly string[]): Promise<string> => {
    const path = join(root, 'scripts', name);
    const { stdout, stderr } = await promisify(execFile)(path, args, { cwd: root, env });
    return stdout + stderr;
  };
  await provideTemplates(join(root, '.local/agent/templates'));
  undo.defer(async () => void (await script('down')));
  await script('up', '--detach');
  const client = await readEnvFile(join(root, '.local/env'));
  const api = new ApiClient(required(client, 'BASE_URL'), required(client, 'API_KEY'));
  const modeOf = async (name: string): Promise<number> =>
    (await stat(join(root, '.local', name))).mode & 0o777;
  t.deepEqual([await modeOf('agent'), await modeOf('redis')], [0o711, 0o700]);

  const { id: disk } = await createDisk(api);
  const repeated = (async () => {
    t.regex(await script('up', '--detach'), /already running in this checkout/u);
    await script('setup');
  })();
  const runCommands = async (): Promise<void> => {
    for (let done = 0; done < COMMANDS; done += 1) {
      t.is((await exec(api, disk, 'echo well')).stdout, 'well\n');
    }
  };
  await Promise.all([repeated, runCommands()]);
  t.deepEqual([await modeOf('agent'), await modeOf('redis')], [0o711, 0o700]);
  await runCommands();
  const { sandbox_id: id } = await createSandbox(api);
  t.is(await outputOf(api, id, 'echo well'), 'well\n');
  await removeSandbox(api, id);

  // Sources that are newer than what the stack runs.
  const program = join(root, 'agent/native/build/leash');
  const before = await stat(program);
  await utimes(join(root, 'agent/native/leash/leash.c'), new Date(), new Date());
  await t.throwsAsync(script('setup'), {
    message:
      /agent\/native must be renewed, and the stack of this checkout uses it: run .*down first/u,
  });
  t.deepEqual(
    [(await stat(program)).ino, (await stat(program)).mtimeMs],
    [before.ino, before.mtimeMs],
  );
  await runCommands();
  await script('down');
  await script('setup');
  t.true((await stat(program)).mtimeMs > before.mtimeMs);
  t.regex(await readFile(join(root, '.local/config.env'), 'utf8'), /^GUEST_DIR=/mu);
});
