/*
 * WAL databases of SQLite on disks that two kernels have mounted: the host's, for commands, and
 * that of a virtual machine. Their processes share memory maps, which kernels do not share.
 */
import { readFile } from 'node:fs/promises';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { countRows } from '../helpers/mounts.ts';
import {
  bring,
  createSandbox,
  forkSandbox,
  getSandbox,
  machinesOf,
  outputOf,
  removeSandbox,
  sandboxSettings,
} from '../helpers/sandboxes.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

const REFUSED = /^database is locked /u;

const { serial: test } = stackTest(sandboxSettings(), async ({ api }) => {
  const { id: disk } = await createDisk(api);
  const mounts = [{ disk_id: disk, path: '/d' }];
  const [one, two] = await Promise.all([
    createSandbox(api, { mounts }),
    createSandbox(api, { mounts }),
  ]);
  const program = await readFile('test/fixtures/wal-database.py', 'utf8');
  await exec(api, disk, `cat > wal.py <<'END'\n${program}\nEND`);
  return { disk, one: one.sandbox_id, two: two.sandbox_id };
});

/** Starts a program of a guest that stays when the call has ended. @returns its output so far */
async function begin(
  api: ApiClient,
  id: string,
  use: string,
  name: string,
): Promise<() => Promise<string>> {
  const script = `(python3 /d/wal.py ${use} /root/end-${name}; echo exit $?) > /root/${name} 2>&1 &`;
  await outputOf(api, id, script);
  await outputOf(api, id, `until grep -q ready /root/${name}; do sleep 0.1; done`);
  return () => outputOf(api, id, `cat /root/${name}`);
}

/** Has such a program end. @returns its output */
async function end(api: ApiClient, id: string, name: string): Promise<string> {
  const ended = `until grep -q exit /root/${name}; do sleep 0.1; done`;
  return outputOf(api, id, `touch /root/end-${name}; ${ended}; cat /root/${name}`);
}

test('a database that a guest has open is refused to commands and to other guests, not the same guest', async (t) => {
  const { api, disk, one, two } = t.context;
  await begin(api, one, 'hold /d/first guest', 'first');
  const [command, other, same] = await Promise.all([
    exec(api, disk, 'python3 wal.py try first command'),
    outputOf(api, two, 'python3 /d/wal.py try /d/first other'),
    outputOf(api, one, 'python3 /d/wal.py try /d/first same'),
  ]);
  t.regex(command.stdout, REFUSED);
  t.regex(other, REFUSED);
  t.is(same, 'same 1\n');
  // The guest has closed one connection, and has another one open.
  t.regex((await exec(api, disk, 'python3 wal.py try first command')).stdout, REFUSED);
  t.is(await end(api, one, 'first'), 'ready\nguest 2\nexit 0\n');
  t.is((await exec(api, disk, 'python3 wal.py try first command')).stdout, 'command 1\n');
  t.is(await countRows(api, two, '/d/first'), 'command 1\nguest 2\nsame 1\n');
});

test('a database that a command has open is refused to guests', async (t) => {
  const { api, disk, one } = t.context;
  const command = exec(api, disk, 'python3 wal.py hold second command /mnt/service/end-second');
  await waitFor('the command', async () => {
    const shown = await exec(api, disk, 'ls');
    return shown.stdout.includes('second-shm');
  });
  t.regex(await outputOf(api, one, 'python3 /d/wal.py try /d/second guest'), REFUSED);
  await exec(api, disk, 'touch end-second');
  t.is((await command).stdout, 'ready\ncommand 2\n');
  t.is(await outputOf(api, one, 'python3 /d/wal.py try /d/second guest'), 'guest 1\n');
  t.is(await countRows(api, one, '/d/second'), 'command 2\nguest 1\n');
});

/** Has a writer commit a row in each of three connections. */
const often = (directory: string, writer: string): string =>
  `for n in 1 2 3; do until python3 ${directory}/wal.py try ${directory}/third ${writer} | ` +
  `grep -q '^${writer} 1'; do sleep 0.2; done; sleep 0.2; done`;

test('guests and commands that open a database in turn lose no row', async (t) => {
  const { api, disk, one, two } = t.context;
  await Promise.all([
    exec(api, disk, often('/mnt/service', 'command')),
    outputOf(api, one, often('/d', 'one')),
    outputOf(api, two, often('/d', 'two')),
  ]);
  const rows =
    `python3 -c "import sqlite3; print(sqlite3.connect('third').execute(` +
    `'select writer, count(*) from rows group by 1 order by 1').fetchall())"`;
  t.is((await exec(api, disk, rows)).stdout, "[('command', 3), ('one', 3), ('two', 3)]\n");
});

test('a paused guest keeps its databases, and its programs go on with them', async (t) => {
  const { api, disk, one, two } = t.context;
  await begin(api, one, 'hold /d/idle idle', 'idle');
  await begin(api, one, 'write /d/busy busy', 'busy');
  await bring(api, one, 'pause', 'paused');
  const refused = await Promise.all([
    exec(api, disk, 'python3 wal.py try idle command').then(({ stdout }) => stdout),
    outputOf(api, two, 'python3 /d/wal.py try /d/busy other'),
  ]);
  for (const answer of refused) t.regex(answer, REFUSED);
  t.is((await exec(api, disk, 'python3 wal.py try unused command')).stdout, 'command 1\n');
  await bring(api, one, 'resume', 'running');
  t.is(await end(api, one, 'idle'), 'ready\nidle 2\nexit 0\n');
  const [, rows] = /^ready\nbusy (\d+)\nexit 0\n$/u.exec(await end(api, one, 'busy')) ?? [];
  t.is(await countRows(api, two, '/d/busy'), `busy ${rows}\n`);
});

test('a hook of a copy can lock files and open databases of a disk', async (t) => {
  const { api, disk, one } = t.context;
  const { sandbox_id: source } = await createSandbox(api, {
    mounts: [{ disk_id: disk, path: '/d' }],
    copy_hook: 'flock -n /d/wal.py true && python3 /d/wal.py try /d/hooked copy > /d/by-hook',
  });
  await outputOf(api, source, 'python3 /d/wal.py try /d/hooked source');
  const { sandbox_id: copy } = await forkSandbox(api, source);
  t.like(await getSandbox(api, copy), { copy_hook_result: { status: 'completed', exit_code: 0 } });
  t.is(await outputOf(api, one, 'cat /d/by-hook'), 'copy 1\n');
  for (const id of [copy, source]) await removeSandbox(api, id);
});

test('a database of a guest that was killed has every row that it committed', async (t) => {
  const { api, disk, one, stack } = t.context;
  await begin(api, one, 'write /d/killed guest', 'killed');
  await bring(api, one, 'pause', 'paused');
  await stack.agent.stop('SIGKILL');
  await stack.startAgent();
  // Nobody has kept it since, and the guest gets an error, or none if nobody has used it.
  t.is((await exec(api, disk, 'python3 wal.py try killed command')).stdout, 'command 1\n');
  await bring(api, one, 'resume', 'running');
  await begin(api, one, 'write /d/ended guest', 'ended');
  for (const pid of await machinesOf([one])) process.kill(pid, 'SIGKILL');
  await waitFor('its end', async () => (await getSandbox(api, one)).status === 'failed');
  for (const name of ['killed', 'ended']) {
    t.is((await exec(api, disk, `python3 wal.py try ${name} late`)).stdout, 'late 1\n');
    t.regex(await countRows(api, t.context.two, `/d/${name}`), /guest [1-9]\d*\nlate 1\n$/u);
  }
});
