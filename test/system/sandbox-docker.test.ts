/*
 * Debian's Docker in a virtual machine, with a container made of files: overlay, bridge,
 * translation of addresses and control groups of the guest's kernel. The packages are those that
 * apt of this computer would install; the guest fetches what is in them from the outside.
 */
import { mkdir, readdir, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import { run } from '../../agent/system/spawn.ts';
import type { ApiClient } from '../helpers/api.ts';
import { Outside } from '../helpers/outside.ts';
import {
  beginExec,
  createSandbox,
  execIn,
  outputOf,
  removeSandbox,
  runsMachines,
  sandboxSettings,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';
import { waitFor } from '../helpers/wait.ts';
import { isFull } from '../helpers/full.ts';

const test = anyTest as TestFn<{ outside: Outside; stack: Stack; api: ApiClient }>;
const isRun = isFull && runsMachines;
const full = isRun ? test : test.skip;

/**
 * Unpacks the Docker packages that the image of sandboxes lacks, on the host, since that takes an
 * emulated processor minutes.
 * @returns the path of a tar file in the directory
 */
async function packDocker(directory: string): Promise<string> {
  const image = process.env['DEFAULT_IMAGE_DIR'] ?? '';
  const cache = join(process.env['BERTH_CACHE_DIR'] ?? '/var/cache/berth', 'test-packages');
  await mkdir(join(cache, 'partial'), { recursive: true });
  const options = [
    `Dir::State::status=${image}/var/lib/dpkg/status`,
    `Dir::Cache::archives=${cache}`,
    'APT::Sandbox::User=root',
  ];
  const args = ['-q', '-y', '--download-only', '--no-install-recommends'];
  const settings = options.flatMap((option) => ['-o', option]);
  await run('apt-get', [...args, ...settings, 'install', 'docker.io'], { timeoutMs: 300_000 });
  const tree = join(directory, 'tree');
  for (const name of await readdir(cache)) {
    if (name.endsWith('.deb')) await run('dpkg-deb', ['-x', join(cache, name), tree]);
  }
  // The package's own script links it like this.
  for (const name of ['iptables', 'ip6tables']) {
    await symlink(`${name}-nft`, join(tree, 'usr/sbin', name));
  }
  await run('tar', ['-C', tree, '-cf', join(directory, 'docker.tar'), '.']);
  return 'docker.tar';
}

test.before(async (t) => {
  if (!isRun) return;
  const outside = await Outside.open();
  await outside.serve('http', 80);
  const stack = await Stack.start({ ...sandboxSettings(), ...outside.settings });
  t.context = { outside, stack, api: await stack.newClient() };
});

test.after.always(async (t) => {
  const { stack, outside } = t.context as Partial<typeof t.context>;
  await stack?.stop();
  await outside?.[Symbol.asyncDispose]();
});

/** A container's root file system: a shell and what it needs. */
const MAKE_ROOT = [
  'mkdir -p /tmp/root && cd /tmp/root',
  'for file in /bin/bash /bin/cat $(ldd /bin/bash /bin/cat | grep -o "/[^ ]*" | grep -v : | sort -u)',
  'do mkdir -p .$(dirname $file) && cp -L $file .$file; done',
].join('; ');

const REQUEST = String.raw`exec 3<>/dev/tcp/outside.test/80; printf "GET / HTTP/1.0\r\n\r\n" >&3; cat <&3`;

full('Docker runs a container made of files, which reaches the outside', async (t) => {
  t.timeout(900_000);
  const { api, outside } = t.context;
  await using temporary = await temporaryDirectory();
  const archive = await packDocker(temporary.path);
  const server = ['python3', '-u', '-m', 'http.server', '8000', '--directory', temporary.path];
  await outside.start(server);
  const { sandbox_id: id } = await createSandbox(api, { mem_size_mib: 2048, vcpu_count: 2 });
  const step = async (command: string): Promise<string> => {
    const exec = await execIn(api, id, command);
    t.is(exec.exit_code, 0, `${command}\n${exec.stdout}\n${exec.stderr}`);
    return exec.stdout ?? '';
  };
  const fetched = `curl -sSf http://outside.test:8000/${archive}`;
  await step(`${fetched} | tar -x -C / --keep-directory-symlink && ldconfig`);
  await beginExec(api, id, 'exec dockerd >/var/log/dockerd.log 2>&1');
  await waitFor(
    'Docker to answer',
    async () => (await execIn(api, id, 'docker info')).exit_code === 0,
    300_000,
  );
  await step(`${MAKE_ROOT}; tar -c . | docker import - local`);
  const driver = await step('docker info --format "{{.Driver}}"');
  t.is(driver, 'overlay2\n');
  const answer = await step(`docker run --rm local /bin/bash -c '${REQUEST}'`);
  const { client } = JSON.parse(answer.slice(answer.indexOf('{'))) as { client: string };
  t.is(client, outside.hostAddress);
  t.is(
    await outputOf(api, id, 'docker run --rm -m 64m local /bin/bash -c "echo $((6 * 7))"'),
    '42\n',
  );
  await removeSandbox(api, id);
});
