/* `scripts/package`: the Debian package, installed below a directory of the test. */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';
import { readEnvFile, required } from '../../scripts/env-file.ts';
import { paths } from '../../scripts/local-paths.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';

const sorted = (lines: string): string => lines.split('\n').sort().join('\n');

const run = async (program: string, ...args: string[]): Promise<string> =>
  (await promisify(execFile)(program, args, { maxBuffer: 2 ** 26 })).stdout;

const guest = (checkout: string): Promise<Buffer> =>
  readFile(join(checkout, 'agent/guest/build/guest'));

test('the package has all that the roles need and no secret, and dpkg installs and removes it', async (t) => {
  t.timeout(300_000);
  await using directory = await temporaryDirectory();
  const { path } = directory;
  const built = (await run(join(paths.root, 'scripts/package'), path)).trim();
  t.deepEqual(await readdir(path), [built.slice(path.length + 1)], 'nothing else is left there');
  t.is((await run('dpkg-deb', '--field', built, 'Package')).trim(), 'berth');
  const depends = await run('dpkg-deb', '--field', built, 'Depends');
  for (const name of ['redis-server', 'runc', 'nftables']) t.true(depends.includes(name), name);

  const root = join(path, 'root');
  await mkdir(join(root, 'var/lib/dpkg/info'), { recursive: true });
  await mkdir(join(root, 'var/lib/dpkg/updates'));
  await writeFile(join(root, 'var/lib/dpkg/status'), '');
  const dpkg = (...args: string[]): Promise<string> =>
    run('dpkg', `--root=${root}`, '--force-depends', '--force-script-chrootless', ...args);
  await dpkg('--install', built);

  // The package's settings name the places of the parts that set-up has built.
  const lib = join(root, 'usr/lib/berth');
  const own = await readEnvFile(paths.config);
  const settings = await readEnvFile(join(lib, '.local/config.env'));
  t.deepEqual(Object.keys(settings), ['DEFAULT_IMAGE_DIR', 'DEFAULT_ROOT_DISK', 'GUEST_DIR']);
  const image = join(root, required(settings, 'DEFAULT_IMAGE_DIR'));
  const ownImage = required(own, 'DEFAULT_IMAGE_DIR');
  t.is(
    await readFile(join(image, '../image.json'), 'utf8'),
    await readFile(join(ownImage, '../image.json'), 'utf8'),
  );
  const disk = await stat(join(root, required(settings, 'DEFAULT_ROOT_DISK')));
  t.true(disk.blocks * 512 < disk.size / 10, 'the root disk is sparse still');
  t.true((await stat(join(root, required(settings, 'GUEST_DIR'), 'vmlinuz'))).size > 0);
  // The native parts include the tools that containers see, links to programs included.
  const tools = async (checkout: string): Promise<string> =>
    run('find', join(checkout, 'agent/native/build'), '!', '-type', 'd', '-printf', '%P %s\\n');
  t.is(sorted(await tools(lib)), sorted(await tools(paths.root)));
  t.deepEqual(await guest(lib), await guest(paths.root), 'which sandboxes that are containers run');

  // No test, no tool of developers, no secret of this checkout, nothing that others may write.
  const files = await run('find', lib, '-printf', '%m %y %P\\n');
  t.notRegex(
    files,
    /^\S+ \S (?:test|bench|\.git|node_modules\/(?:ava|oxlint|typescript))(?:\/|$)/mu,
  );
  t.notRegex(files, /^\d*[2367] [fd] /mu);
  t.regex(files, /docs\/sdk\/index\.md\n/u);
  t.regex(files, /docs\/settings\.md\n/u);
  for (const name of ['CLUSTER_SECRET', 'ENCRYPTION_KEY', 'SIGNING_KEYS']) {
    const found = run('grep', '-rlF', required(own, name), lib).catch(() => '');
    t.is(await found, '', name);
  }

  // Its own Node runs its own programs, with its own modules.
  const node = join(lib, 'node_modules/.bin/node');
  const configured = join(path, 'configured');
  for (const role of ['redis', 'control', 'agent']) {
    await run(join(lib, 'scripts/install'), role, '--root', configured);
  }
  for (const role of ['control', 'agent']) {
    const config = join(configured, `etc/berth/${role}.env`);
    await run(node, join(lib, `${role}/main.ts`), '--check', '--config', config);
  }
  t.regex(await run(node, join(lib, 'clients/cli/bin/berth.js'), '--version'), /^\d+\.\d+\.\d+$/mu);
  t.regex(await run(join(lib, 'scripts/admin'), '--help'), /secrets reseal/u);

  // An agent noted in the image where its data is.
  const data = join(path, 'data');
  await mkdir(data);
  await writeFile(join(image, '../hosts/0'), data);
  await mkdir(join(root, 'etc/berth'), { recursive: true });
  const disks = join(root, 'var/lib/berth/storage');
  await mkdir(disks, { recursive: true });
  await writeFile(join(lib, '.local/compiled'), 'as berth-admin caches it');
  await dpkg('--remove', 'berth');
  t.false(existsSync(lib));
  t.true(existsSync(join(root, 'etc/berth')), 'the configuration stays until it is purged');
  await dpkg('--purge', 'berth');
  t.false(existsSync(join(root, 'etc/berth')));
  t.true(existsSync(disks), 'disks are nothing that a package removes');
  t.true((await stat(image)).isDirectory(), 'disks of sandboxes stand on it');

  // Nothing stands on it any more; unpacked once, it is left alone by a second installation.
  await dpkg('--install', built);
  t.is(await readFile(join(image, '../hosts/0'), 'utf8'), data, 'not unpacked again');
  await rm(data, { recursive: true });
  await dpkg('--purge', 'berth');
  t.false(existsSync(join(root, 'var/cache/berth')));
});
