import test from 'ava';
import { execFile } from 'node:child_process';
import { cp, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { paths } from '../../agent/system/paths.ts';
import { Journal } from '../../agent/system/journal/journal.ts';
import type { SandboxExecRow, SandboxRow } from '../../agent/system/journal/sandbox-journal.ts';
import { newAccountId, newDiskId, newJobId, newRequestId, newSandboxId } from '../../shared/ids.ts';
import type { SnapshotRow } from '../../agent/system/journal/snapshot-journal.ts';
import { newSandbox } from '../helpers/sandbox-records.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';

const program = new URL('../../scripts/inspect-journal.ts', import.meta.url).pathname;
const hostId = 'host-0123456789ab';
const now = '2026-01-02T03:04:05.678Z';

interface Run {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

const inspect = (words: readonly string[], env: Record<string, string> = {}): Promise<Run> =>
  new Promise((resolve) => {
    execFile(process.execPath, [program, ...words], { env }, (error, stdout, stderr) => {
      resolve({ code: typeof error?.code === 'number' ? error.code : 0, stdout, stderr });
    });
  });

const newExec = (sandboxId: string, changes: Partial<SandboxExecRow> = {}): SandboxExecRow => ({
  id: newJobId(),
  sandboxId,
  command: 'sleep 10',
  status: 'running',
  startedAt: now,
  droppedBytes: 0,
  timeoutAt: undefined,
  ending: undefined,
  ...changes,
});

/** A data directory as an agent has it, its journal still open. */
async function dataDirectory(): Promise<
  AsyncDisposable & { readonly path: string; readonly journal: Journal }
> {
  const directory = await temporaryDirectory();
  await writeFile(paths.hostId(directory.path), `${hostId}\n`);
  const journal = await Journal.open(paths.journal(directory.path));
  return {
    path: directory.path,
    journal,
    async [Symbol.asyncDispose]() {
      await journal.close();
      await directory[Symbol.asyncDispose]();
    },
  };
}

test('sandboxes, what they have of the host, and their commands, while the agent writes', async (t) => {
  await using data = await dataDirectory();
  const { sandboxes } = data.journal;
  const [running, ended] = [
    newSandbox(),
    newSandbox({ uid: 600_100_002, slot: undefined, state: 'failed', exitReason: 'vmm_crashed' }),
  ];
  await sandboxes.insert(running);
  await sandboxes.insert(ended);
  const done = newExec(running.id, { command: 'true' });
  await sandboxes.beginExec(done);
  await sandboxes.saveExec({ ...done, status: 'completed', exitCode: 0, finishedAt: now });

  const { code, stdout, stderr } = await inspect([data.path]);
  t.is(stderr, '');
  t.is(code, 0);
  for (const text of [
    hostId,
    `${running.id}  calm-river-17  ${running.accountId}  running`,
    `uid 600100001  boot ${running.bootId}  slot 3  namespace berth-0123456789ab-3`,
    `${done.id}  ${now}  completed  exit 0  true`,
    `${ended.id}  calm-river-17  ${ended.accountId}  failed`,
    'exit: vmm_crashed',
    'Nothing is unfinished.',
  ]) {
    t.true(stdout.includes(text), `${text}\nin\n${stdout}`);
  }
  t.false(stdout.includes('a-secret'));
  await t.notThrowsAsync(sandboxes.save({ ...running, revision: 5 }), 'the agent goes on');
});

test('what a crash would leave unfinished', async (t) => {
  await using data = await dataDirectory();
  const { journal } = data;
  const diskExec = {
    id: newJobId(),
    accountId: newAccountId(),
    diskIds: [newDiskId()],
    requestId: newRequestId(),
    begunAt: now,
  };
  await journal.beginExec(diskExec);
  const [starting, deleting, running] = [
    newSandbox({ uid: 1, slot: 1, state: 'pending_start', createdAt: '2026-01-01' }),
    newSandbox({ uid: 2, slot: undefined, isDeleting: true, createdAt: '2026-01-02' }),
    newSandbox({ uid: 3, slot: 2, createdAt: '2026-01-03' }),
  ];
  for (const row of [starting, deleting, running]) await journal.sandboxes.insert(row);
  const [exec, cancelled] = [newExec(running.id), newExec(running.id)];
  await journal.sandboxes.beginExec(exec);
  await journal.sandboxes.beginExec(cancelled);
  await journal.sandboxes.saveExec({ ...cancelled, ending: 'cancelled' });

  const { stdout } = await inspect(['--json'], { AGENT_DATA_DIR: data.path });
  const report = JSON.parse(stdout) as {
    unfinished: string[];
    diskExecs: object[];
    sandboxes: (SandboxRow & { environmentNames: string[]; execs: SandboxExecRow[] })[];
  };
  t.deepEqual(report.unfinished, [
    `command ${diskExec.id} on disks runs or is not reclaimed yet`,
    `sandbox ${starting.id} is in state pending_start`,
    `sandbox ${deleting.id} is being deleted`,
    `command ${exec.id} of sandbox ${running.id} runs`,
    `command ${cancelled.id} of sandbox ${running.id} is being ended: cancelled`,
  ]);
  t.deepEqual(report.diskExecs, [diskExec]);
  t.deepEqual(report.sandboxes[0]?.environmentNames, ['TOKEN']);
  t.deepEqual(
    report.sandboxes.map(({ execs }) => execs.length),
    [0, 0, 2],
  );
  t.false(stdout.includes('a-secret'));
});

test('snapshots are shown without their secrets', async (t) => {
  await using data = await dataDirectory();
  const { accountId, config, environment, network } = newSandbox();
  const snapshot = (changes: Partial<SnapshotRow>): SnapshotRow => ({
    ...{ id: newSandboxId(), accountId, name: 'kept', sandboxId: newSandboxId(), config },
    ...{ environment, image: undefined, network, networkSealed: 'sealed-secret' },
    ...{ rootDiskId: newDiskId(), uid: 1, state: 'ready', hasMemory: true, sizeBytes: 4096 },
    ...{ failureReason: undefined, revision: 1, createdAt: now },
    ...changes,
  });
  const ready = snapshot({});
  const [creating, failed] = [
    snapshot({ uid: 2, name: 'begun', state: 'creating' }),
    snapshot({ uid: 3, name: 'gone', state: 'failed', failureReason: 'no space\u001B[2J' }),
  ];
  for (const row of [ready, creating, failed]) await data.journal.snapshots.insert(row);
  const { stdout, stderr } = await inspect([data.path]);
  t.is(stderr, '');
  for (const text of [
    'sandboxes 0, snapshots 3',
    `${ready.id}  kept  ${accountId}  snapshot ready`,
    `of sandbox ${ready.sandboxId}  with memory  4096 bytes`,
    'failure: no space?[2J',
    `snapshot ${creating.id} is in state creating`,
  ]) {
    t.true(stdout.includes(text), `${text}\nin\n${stdout}`);
  }
  const json = await inspect([data.path, '--json']);
  t.is((JSON.parse(json.stdout) as { snapshots: object[] }).snapshots.length, 3);
  for (const each of [stdout, json.stdout]) t.notRegex(each, /a-secret|sealed-secret/u);
});

test('texts of callers are shown, not obeyed by the terminal', async (t) => {
  await using data = await dataDirectory();
  const row = newSandbox({
    exitReason: 'guest_panic',
    exitMessage: 'panic\u001B[2J\u009B31m\nforged',
  });
  await data.journal.sandboxes.insert(row);
  const command = `printf '\u001B]0;title\u0007'; ${'x'.repeat(10_000)}`;
  await data.journal.sandboxes.beginExec(newExec(row.id, { command }));
  const { stdout } = await inspect([data.path]);
  t.regex(stdout, /panic\?\[2J\?31m\?forged/u);
  t.notRegex(stdout.replaceAll('\n', ''), /\p{C}/u);
  t.true(stdout.length < 2_000);
});

test('the journal of an agent that was killed is read with its last words, and left as it is', async (t) => {
  await using data = await dataDirectory();
  const row = newSandbox();
  await data.journal.sandboxes.insert(row);
  await using copy = await temporaryDirectory();
  // The state after kill -9: what was written last is in the log beside it only.
  await cp(data.path, copy.path, { recursive: true, filter: (path) => !path.endsWith('-shm') });
  const before = await readFile(join(copy.path, 'journal.sqlite-wal'));
  t.true(before.length > 0);
  const { code, stdout, stderr } = await inspect([copy.path]);
  t.is(code, 0, stderr);
  t.true(stdout.includes(row.id));
  t.deepEqual(await readFile(join(copy.path, 'journal.sqlite-wal')), before);
});

test('a journal that is closed', async (t) => {
  await using directory = await temporaryDirectory();
  await writeFile(paths.hostId(directory.path), `${hostId}\n`);
  await (await Journal.open(paths.journal(directory.path))).close();
  const { stdout } = await inspect([directory.path]);
  t.is(
    stdout,
    `${hostId}: sandboxes 0, snapshots 0, commands on disks 0\n\nNothing is unfinished.\n`,
  );
});

test('what is no journal of this version is refused, and none is made', async (t) => {
  await using directory = await temporaryDirectory();
  const missing = await inspect([directory.path]);
  t.is(missing.code, 1);
  t.regex(missing.stderr, /^inspect-journal: .*CANTOPEN/u);
  const database = new DatabaseSync(paths.journal(directory.path));
  database.exec('PRAGMA user_version = 1000');
  database.close();
  const newer = await inspect([directory.path]);
  t.is(newer.code, 1);
  t.regex(newer.stderr, /the journal has version 1000/u);
});

test('says how it is used', async (t) => {
  const help = await inspect(['--help']);
  t.is(help.code, 0);
  t.regex(help.stdout, /^usage: scripts\/inspect-journal/u);
  const without = await inspect([]);
  t.is(without.code, 1);
  t.regex(without.stderr, /usage: scripts\/inspect-journal/u);
  t.is((await inspect(['/a', '/b'])).code, 1);
});
