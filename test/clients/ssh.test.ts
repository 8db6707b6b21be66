/*
 * Debian's OpenSSH client, with `berth sandbox ssh-proxy` as its ProxyCommand; at full length into
 * a virtual machine.
 */
import assert from 'node:assert';
import { execFile, spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { Cli } from '../helpers/cli.ts';
import { isFull } from '../helpers/full.ts';
import { freePorts } from '../helpers/ports.ts';
import {
  containerSettings,
  createSandbox,
  outputOf,
  sandboxSettings,
} from '../helpers/sandboxes.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';
import { MiB } from '../../shared/units.ts';

interface Result {
  readonly code: number | null;
  readonly stdout: Buffer;
  readonly stderr: string;
}

const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

const settings = isFull ? sandboxSettings() : containerSettings();

const test = stackTest(settings, async ({ stack, api }) => {
  const cli = await Cli.in(stack.directory, api);
  const { sandbox_id: id } = await createSandbox(api, { name: 'box' });
  const directory = join(stack.directory, 'ssh');
  await mkdir(directory);
  const config = join(directory, 'config');
  await writeFile(config, await cli.output('sandbox', 'ssh-config', 'box'));
  const run = async (
    program: string,
    args: readonly string[],
    input: Uint8Array | string = '',
  ): Promise<Result> => {
    const options = program === 'env' ? [] : ['-F', config];
    const child = spawn(program, [...options, ...args], { cwd: directory, env: cli.environment });
    child.stdin.on('error', () => undefined);
    child.stdin.end(input);
    const exited = once(child, 'exit');
    const [stdout, stderr] = await Promise.all([buffer(child.stdout), buffer(child.stderr)]);
    const [code] = (await exited) as [number | null];
    return { code, stdout, stderr: stderr.toString() };
  };
  return { cli, id, directory, config, run };
});

/** Brings programs of this computer and their libraries into the sandbox, as packages would. */
async function install(
  { run }: { readonly run: (...given: [string, readonly string[], Buffer?]) => Promise<Result> },
  programs: readonly string[],
): Promise<void> {
  const { stdout: libraries } = await promisify(execFile)('ldd', programs);
  const files = [...programs, ...(libraries.match(/\/\S+\.so\S*/gu) ?? [])];
  const tar = promisify(execFile)('tar', ['-chP', ...files], {
    encoding: 'buffer',
    maxBuffer: 64 * MiB,
  });
  const unpack = ['box.berth', 'tar -xP --skip-old-files'];
  const { code, stderr } = await run('ssh', unpack, (await tar).stdout);
  assert.equal(code, 0, stderr);
}

test('ssh runs commands, with their input, output and exit code', async (t) => {
  const { run } = t.context;
  const bytes = randomBytes(3 * MiB);
  const echoed = await run('ssh', ['box.berth', 'cat; echo done >&2; exit 7'], bytes);
  t.is(echoed.code, 7, echoed.stderr);
  t.is(sha256(echoed.stdout), sha256(bytes));
  t.is(echoed.stderr, 'done\n');
  const home = await run('ssh', ['box.berth', 'pwd; echo "$HOME"; echo "$0"']);
  const [directory, expected] = home.stdout.toString().split('\n');
  t.is(directory, expected);
  t.is((await run('ssh', ['box.berth', 'kill -9 $$'])).code, 137);
});

test('ssh opens a shell in a terminal', async (t) => {
  const { run } = t.context;
  const typed = 'stty size; tty; echo "$TERM"; exit 5\n';
  const { code, stdout } = await run('ssh', ['-tt', 'box.berth'], typed);
  t.is(code, 5);
  t.regex(stdout.toString(), /\d+ \d+\r\n\/dev\/pts\/\d+/u);
});

test('scp, sftp and rsync carry files, where the image has no sftp-server', async (t) => {
  const { run, directory, id, api } = t.context;
  const servers = 'ls /usr/lib/openssh/sftp-server /usr/lib/ssh/sftp-server 2>/dev/null; true';
  t.is(await outputOf(api, id, servers), '');
  await install(t.context, ['/usr/bin/rsync']);
  const bytes = randomBytes(5 * MiB + 123);
  await writeFile(join(directory, 'a file'), bytes, { mode: 0o640 });
  const up = await run('scp', ['-p', 'a file', 'box.berth:/tmp/b file']);
  t.is(up.code, 0, up.stderr);
  t.is(await outputOf(api, id, 'stat -c "%a %s" "/tmp/b file"'), `640 ${bytes.length}\n`);
  const down = await run('scp', ['box.berth:/tmp/b file', 'c']);
  t.is(down.code, 0, down.stderr);
  t.is(sha256(await readFile(join(directory, 'c'))), sha256(bytes));

  const commands = ['mkdir /tmp/d', 'put c /tmp/d/e', 'rename /tmp/d/e /tmp/d/f', 'ls -l /tmp/d'];
  const more = ['get /tmp/d/f g', 'rm /tmp/d/f', 'rmdir /tmp/d'];
  const batch = `${[...commands, ...more].join('\n')}\n`;
  const sftp = await run('sftp', ['-b', '-', 'box.berth'], batch);
  t.is(sftp.code, 0, sftp.stderr);
  t.is(sha256(await readFile(join(directory, 'g'))), sha256(bytes));
  const rsync = ['rsync', '-a', '-e', `ssh -F ${t.context.config}`, 'c', 'g', 'box.berth:/tmp/h/'];
  const synced = await run('env', rsync);
  t.is(synced.code, 0, synced.stderr);
  t.is(await outputOf(api, id, 'cmp /tmp/h/c /tmp/h/g && echo same'), 'same\n');
  const missing = await run('scp', ['box.berth:/tmp/not', 'x']);
  t.is(missing.code, 1);
  t.regex(missing.stderr, /No such file/u);
});

test('sftp arranges files, whatever their names are', async (t) => {
  const { run, directory, id, api } = t.context;
  await outputOf(api, id, 'mkdir -p /tmp/arranged/full; echo content > /tmp/arranged/full/x');
  await writeFile(join(directory, '-odd name'), 'odd\n');
  await writeFile(join(directory, 'none'), '');
  await writeFile(join(directory, 'more'), 'old and more\n');
  const sftp = (...commands: string[]): Promise<Result> =>
    run('sftp', ['-b', '-', 'box.berth'], `${commands.join('\n')}\n`);
  const done = await sftp(
    'cd /tmp/arranged',
    `put -- "-odd name" "it's -odd"`,
    'put none',
    'ln -s full link',
    'chmod 600 none',
    'rename none renamed',
    'ls -la',
    'get link/x got',
  );
  t.is(done.code, 0, done.stderr);
  const shown = done.stdout.toString();
  t.regex(shown, /^drwxr-xr-x .* full$/mu);
  t.regex(shown, /^-rw------- .* 0 .* renamed$/mu);
  t.is(await readFile(join(directory, 'got'), 'utf8'), 'content\n');
  const inside = `cd /tmp/arranged; cat "it's -odd"; readlink link; stat -c "%a %s" renamed`;
  t.is(await outputOf(api, id, inside), 'odd\nfull\n600 0\n');
  // An upload goes on behind what is there.
  await outputOf(api, id, 'printf "old and" > /tmp/arranged/more');
  const resumed = await sftp('reput more /tmp/arranged/more');
  t.is(resumed.code, 0, resumed.stderr);
  t.is(await outputOf(api, id, 'cat /tmp/arranged/more'), 'old and more\n');
  const refusals = ['rmdir /tmp/arranged/full', 'rm /tmp/arranged/full', 'put more /nowhere/more'];
  for (const refused of refusals) t.is((await sftp(refused)).code, 1, refused);
  t.is((await sftp('rename /tmp/arranged/link /tmp/arranged/renamed')).code, 1);
});

test('an upload that breaks off leaves the old file, and nothing beside it', async (t) => {
  const { cli, config, directory, id, api } = t.context;
  await outputOf(api, id, 'mkdir /tmp/broken; echo old > /tmp/broken/file');
  await writeFile(join(directory, 'large'), randomBytes(16 * MiB));
  const slowly = ['-F', config, '-l', '8000', 'large', 'box.berth:/tmp/broken/file'];
  const scp = spawn('scp', slowly, {
    cwd: directory,
    env: cli.environment,
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  const ended = buffer(scp.stderr); // ssh and its ProxyCommand have this end, too.
  await waitFor('a part of the file to be sent', async () => {
    const counters = await readFile(`/proc/${scp.pid}/io`, 'utf8');
    return Number(/^rchar: (\d+)$/mu.exec(counters)?.[1]) > 2 * MiB;
  });
  scp.kill('SIGKILL');
  await ended;
  t.is(await outputOf(api, id, 'cat /tmp/broken/file; ls -A /tmp/broken'), 'old\nfile\n');
});

test('ssh forwards ports, and each direction ends by itself', async (t) => {
  const { cli, config, directory, id, api } = t.context;
  const [port = 0, inside = 0] = await freePorts(2);
  const server = `python3 -c '
import socket
s = socket.create_server(("127.0.0.1", ${inside}))
while True:
  c, _ = s.accept(); data = b""
  while True:
    b = c.recv(65536)
    if not b: break
    data += b
  c.sendall(data[::-1]); c.close()'`;
  const sandbox = await outputOf(api, id, `(setsid ${server} >/dev/null 2>&1 &) ; echo begun`);
  t.is(sandbox, 'begun\n');
  const args = ['-F', config, '-N', '-L', `${port}:127.0.0.1:${inside}`, 'box.berth'];
  const ssh = spawn('ssh', args, { cwd: directory, env: cli.environment, stdio: 'ignore' });
  try {
    const open = async () => {
      const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
      await once(socket, 'connect');
      return socket;
    };
    const socket = await waitFor('the forwarding', () => open().catch(() => undefined));
    const bytes = randomBytes(2 * MiB);
    socket.end(bytes); // The server answers only after this end.
    t.is(sha256(await buffer(socket)), sha256(bytes.toReversed()));
  } finally {
    ssh.kill();
    await once(ssh, 'exit');
  }
});
