import anyTest, { type TestFn } from 'ava';
import type { ExecResult } from '../../shared/schemas/exec.ts';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec, missingDiskId } from '../helpers/disks.ts';
import { Stack } from '../helpers/stack.ts';

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient; diskId: string }>;

test.before(async (t) => {
  t.context.stack = await Stack.start();
  t.context.api = await t.context.stack.newClient();
  t.context.diskId = (await createDisk(t.context.api)).id;
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** Runs a command and compares its result. Defaults: empty stdout and stderr, exit code 0. */
const gives = test.macro<[command: string, expected: Partial<Omit<ExecResult, 'timing'>>]>({
  async exec(t, command, expected) {
    const { timing, ...result } = await exec(t.context.api, t.context.diskId, command);
    t.deepEqual(result, { exitCode: 0, stdout: '', stderr: '', ...expected });
    t.true(timing.executeMs + timing.queueMs <= timing.totalMs);
  },
  title: (given = '') => `a command: ${given}`,
});

test('works in the disk', gives, 'pwd', { stdout: '/mnt/service\n' });
test('is run by bash -c', gives, 'echo $0 $BASH_VERSINFO; shopt -q login_shell || echo plain', {
  stdout: 'bash 5\nplain\n',
});
test('exit code', gives, 'exit 3', { exitCode: 3 });
test('exit code of the last command', gives, 'false; (exit 255)', { exitCode: 255 });
test('a command that begins with - is no option of bash', gives, '-x 2>&1; echo on', {
  stdout: 'bash: line 1: -x: command not found\non\n',
});
test('unknown program', gives, 'nosuchprogram 2>/dev/null', { exitCode: 127 });
test('program without permission', gives, '/etc/passwd 2>/dev/null', { exitCode: 126 });
test('syntax error', gives, 'if', {
  exitCode: 2,
  stderr: 'bash: -c: line 2: syntax error: unexpected end of file\n',
});
test('SIGKILL is 137', gives, 'kill -KILL $$', { exitCode: 137 });
test('SIGTERM is 143', gives, 'kill -TERM $$', { exitCode: 143 });
test('SIGSEGV is 139', gives, 'kill -SEGV $$', { exitCode: 139 });
test('stdin is empty', gives, 'cat; read line || echo end; test -t 0 || echo no terminal', {
  stdout: 'end\nno terminal\n',
});
test('streams stay apart', gives, 'echo out; echo err >&2; echo out', {
  stdout: 'out\nout\n',
  stderr: 'err\n',
});
test(
  '/dev/stdout and /dev/stderr can be opened',
  gives,
  'echo a > /dev/stdout; echo b > /dev/stderr; echo c | tee /dev/stderr; echo d >> /proc/self/fd/1',
  { stdout: 'a\nc\nd\n', stderr: 'b\nc\n' },
);
test('no output', gives, ':', {});
test('NUL and bytes that are not UTF-8', gives, String.raw`printf 'a\0b\xff\xc3c\xe2\x82\xac'`, {
  stdout: 'a\0b\u{fffd}\u{fffd}c€',
});
test('control characters and quotes', gives, String.raw`printf '\1\2"\\\r\n\x7f\xe2\x80\xa8'`, {
  stdout: '\u0001\u0002"\\\r\n\u007f\u2028',
});
test('a command of many lines', gives, 'cat <<END\n  $(echo ü)\n\tx\nEND\nexit 7', {
  stdout: '  ü\n\tx\n',
  exitCode: 7,
});
test('runs as root', gives, 'id -un; id -G', { stdout: 'root\n0\n' });
test('the container has its own host name', gives, 'hostname; cat /proc/sys/kernel/hostname', {
  stdout: 'exec\nexec\n',
});
test('the alias leads to the disk', gives, 'cd /mnt/archil && pwd -P', {
  stdout: '/mnt/service\n',
});
test('environment', gives, 'env -u _ -u SHLVL -u PWD -u OLDPWD | sort', {
  stdout:
    'HOME=/root\nLANG=C.UTF-8\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nUSER=root\n',
});
test(
  'the root file system can be written',
  gives,
  'mkdir /workspace && rmdir /workspace && ln -s /mnt/service /workspace && echo x > /etc/motd && chown 12:34 /etc/motd && stat -c %u:%g /etc/motd && mv /usr/bin/tac /opt/tac && cp -a /etc/passwd /root',
  { stdout: '12:34\n' },
);
test('links and locks work on the disk', gives, 'ln -s a l; readlink l; flock lock echo held', {
  stdout: 'a\nheld\n',
});

test(
  'the promised tools are there',
  gives,
  'for tool in bash ls cp mv sort sed awk grep find xargs git curl python3 node tar; do type -P $tool > /dev/null || echo no $tool; done',
  {},
);
test(
  'git works on the disk',
  gives,
  'git init -q repo && cd repo && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first && git log --format=%s',
  { stdout: 'first\n' },
);
test('python works', gives, 'python3 -c "import json, ssl, sqlite3; print(json.dumps([1]))"', {
  stdout: '[1]\n',
});
test(
  'SQLite locks a database on the disk',
  gives,
  `node --no-warnings -e '
    const { DatabaseSync } = require("node:sqlite");
    const one = new DatabaseSync("locked.db"), two = new DatabaseSync("locked.db");
    one.exec("PRAGMA journal_mode=WAL; CREATE TABLE IF NOT EXISTS t(x); BEGIN IMMEDIATE; INSERT INTO t VALUES (1)");
    try { two.exec("BEGIN IMMEDIATE"); } catch (error) { console.log(error.message); }
    one.exec("COMMIT");
    two.exec("BEGIN IMMEDIATE; ROLLBACK");
    console.log(two.prepare("SELECT count(*) AS n FROM t").get().n);'`,
  { stdout: 'database is locked\n1\n' },
);
test(
  'only the loopback interface is there',
  gives,
  "cut -d: -f1 -s /proc/net/dev | tr -d ' ' | grep -v '|'; grep -c . /proc/net/route",
  { stdout: 'lo\n1\n' },
);
test(
  'loopback works inside',
  gives,
  `python3 -c '
import socket
server = socket.create_server(("127.0.0.1", 80))
client = socket.create_connection(("127.0.0.1", 80))
print(server.accept()[1][0])'`,
  { stdout: '127.0.0.1\n' },
);
import { MiB } from '../../shared/units.ts';

test('files on the disk stay, files outside of it do not', async (t) => {
  const { api, diskId } = t.context;
  await exec(
    api,
    diskId,
    'echo kept > kept; for place in /tmp /root /etc /dev/shm /var /mnt; do touch $place/left; done; (sleep 1000 &); hostname other 2>/dev/null; true',
  );
  const next = await exec(
    api,
    diskId,
    'cat kept; find / -xdev -name left; find /dev/shm -name left; hostname; cat /proc/[0-9]*/comm | grep sleep',
  );
  t.is(next.stdout, 'kept\nexec\n');
});

test('a command of exactly 1 MiB is run, one byte more is refused', async (t) => {
  const { api, diskId } = t.context;
  const command = 'echo $0 ${#text}; exit 9 #';
  for (const letter of ['x', 'ü']) {
    const size = Buffer.byteLength(letter);
    const prefix = `text=${letter.repeat(200_000)}\n${command}`;
    const room = 1 * MiB - Buffer.byteLength(prefix);
    const longest = prefix + letter.repeat(Math.floor(room / size)) + 'x'.repeat(room % size);
    const result = await exec(api, diskId, longest);
    t.is(result.stdout, 'bash 200000\n');
    t.is(result.exitCode, 9);
    const path = `/api/disks/${diskId}/exec`;
    const refused = await api.call('POST', path, { command: `${longest}x` });
    t.is(refused.status, 400);
    t.is(refused.body.code, 'bad_request');
  }
});

test('commands around the length of one argument behave alike', async (t) => {
  const { api, diskId } = t.context;
  for (const length of [120 * 1024 - 1, 120 * 1024, 120 * 1024 + 1, 128 * 1024, 500_000]) {
    const command = "ls /proc/self/fd | tr '\\n' ' '; cat; exit 4 #";
    const result = await exec(api, diskId, command.padEnd(length, 'x'));
    t.deepEqual([result.stdout, result.stderr, result.exitCode], ['0 1 2 3 ', '', 4]);
  }
});

const refused = test.macro<[body: unknown]>({
  async exec(t, body) {
    const { api, diskId } = t.context;
    const reply = await api.call('POST', `/api/disks/${diskId}/exec`, body);
    t.is(reply.status, 400);
    t.is(reply.body.code, 'bad_request');
  },
  title: (given = '') => `refused with 400: ${given}`,
});
test('no body', refused, undefined);
test('not JSON', refused, '{"command":');
test('a list', refused, []);
test('no command', refused, {});
test('an empty command', refused, { command: '' });
test('a command that is no text', refused, { command: 7 });
test('a command with a NUL character', refused, { command: 'echo a\0b' });

test('a disk that does not exist and one of another account answer alike', async (t) => {
  const { api, stack, diskId } = t.context;
  const stranger = await stack.newClient();
  const body = { command: 'true' };
  const missing = await api.call('POST', `/api/disks/${missingDiskId}/exec`, body);
  const foreign = await stranger.call('POST', `/api/disks/${diskId}/exec`, body);
  t.is(missing.status, 404);
  t.is(foreign.status, 404);
  t.is(foreign.body.error.replace(diskId, missingDiskId), missing.body.error);
  t.is(missing.body.code, 'not_found');
  const malformed = await api.call('POST', '/api/disks/dsk-1/exec', body);
  t.is(malformed.status, 400);
});

test('a deleted disk is gone for exec', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'echo x > file');
  await api.data('DELETE', `/api/disks/${id}`).catch(() => undefined);
  const reply = await api.call('POST', `/api/disks/${id}/exec`, { command: 'cat file' });
  t.is(reply.status, 404);
});

test('commands on one disk at the same time see the same files', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  const names = Array.from({ length: 12 }, (_, index) => `part-${index}`);
  const results = await Promise.all(
    names.map((name) =>
      exec(api, id, `echo ${name} > ${name}; flock lock sh -c 'echo ${name} >> all'`),
    ),
  );
  t.true(results.every(({ exitCode, stderr }) => exitCode === 0 && stderr === ''));
  const { stdout } = await exec(api, id, 'sort all');
  t.deepEqual(stdout.trim().split('\n'), names.toSorted());
});

test('commands on several disks at the same time see their own disk only', async (t) => {
  const { api } = t.context;
  const disks = await Promise.all(Array.from({ length: 4 }, () => createDisk(api)));
  const results = await Promise.all(
    [...disks, ...disks].map(async ({ id }) => {
      await exec(api, id, `echo ${id} >> own`);
      return [id, (await exec(api, id, 'sort -u own; ls -A')).stdout] as const;
    }),
  );
  for (const [id, stdout] of results) t.is(stdout, `${id}\nown\n`);
});

test('every byte of the output arrives, however quickly the command ends', async (t) => {
  const { api, diskId } = t.context;
  const sizes = [1, 4095, 65_536, 65_537, 1_000_000, 3_000_000];
  const results = await Promise.all(
    sizes.map((size) =>
      exec(
        api,
        diskId,
        `head -c ${size} /dev/zero | tr '\\0' o; head -c ${size} /dev/zero | tr '\\0' e >&2`,
      ),
    ),
  );
  for (const [index, { stdout, stderr }] of results.entries()) {
    t.is(stdout, 'o'.repeat(sizes[index] ?? 0));
    t.is(stderr, 'e'.repeat(sizes[index] ?? 0));
  }
});

test('the output of a short command arrives on a busy host', async (t) => {
  const { api, diskId } = t.context;
  const busy = exec(
    api,
    diskId,
    'for i in {1..30}; do timeout 3 bash -c "while :; do :; done" & done; wait',
  );
  for (let round = 0; round < 10; round += 1) {
    const results = await Promise.all(
      Array.from({ length: 4 }, () => exec(api, diskId, 'echo out; echo err >&2')),
    );
    for (const { stdout, stderr } of results) t.deepEqual([stdout, stderr], ['out\n', 'err\n']);
  }
  await busy;
});

test('the timing in the answer matches the command', async (t) => {
  const { api, diskId } = t.context;
  const long = await exec(api, diskId, 'sleep 0.5');
  const short = await exec(api, diskId, ':');
  t.true(long.timing.executeMs > short.timing.executeMs);
});
