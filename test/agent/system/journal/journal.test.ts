import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import test from 'ava';
import { type ExecIntent, holdLock, Journal } from '../../../../agent/system/journal/journal.ts';
import { newAccountId, newDiskId, newJobId, newRequestId } from '../../../../shared/ids.ts';
import type { SandboxExecRow } from '../../../../agent/system/journal/sandbox-journal.ts';
import {
  all,
  close,
  exec,
  open,
  retryRefused,
  run,
} from '../../../../agent/system/journal/sqlite.ts';
import { MiB } from '../../../../shared/units.ts';
import { newSandbox } from '../../../helpers/sandbox-records.ts';
import { mountSmall } from '../../../helpers/small-storage.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';

const newIntent = (begunAt = new Date().toISOString()): ExecIntent => ({
  id: newJobId(),
  accountId: newAccountId(),
  diskIds: [newDiskId(), newDiskId()],
  requestId: newRequestId(),
  begunAt,
});

test('what was begun and not ended is there after a restart, the oldest first', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'journal.sqlite');
  const journal = await Journal.open(path);
  const [first, second, third] = [newIntent('2026-01-02'), newIntent('2026-01-01'), newIntent()];
  for (const intent of [first, second, third]) await journal.beginExec(intent);
  await journal.endExec(third.id);
  await journal.close();
  const again = await Journal.open(path);
  t.deepEqual(await again.execs(), [second, first]);
  await again.close();
});

test('an exec is begun once', async (t) => {
  await using directory = await temporaryDirectory();
  const journal = await Journal.open(join(directory.path, 'journal.sqlite'));
  const intent = newIntent();
  await journal.beginExec(intent);
  await t.throwsAsync(journal.beginExec(intent), { code: 'outcome_unknown' });
  await journal.endExec(intent.id);
  await t.notThrowsAsync(journal.endExec(intent.id));
  t.deepEqual(await journal.execs(), []);
  await journal.close();
});

test('texts are kept as they are', async (t) => {
  await using directory = await temporaryDirectory();
  const journal = await Journal.open(join(directory.path, 'journal.sqlite'));
  const intent = { ...newIntent(), requestId: `'; DROP TABLE execs; -- "\u{1f600}` };
  await journal.beginExec(intent);
  t.deepEqual(await journal.execs(), [intent]);
  await journal.close();
});

test('a command that has ended stays so, when a write that began while it ran comes late', async (t) => {
  await using directory = await temporaryDirectory();
  const journal = await Journal.open(join(directory.path, 'journal.sqlite'));
  const sandbox = newSandbox();
  await journal.sandboxes.insert(sandbox);
  const command: SandboxExecRow = {
    id: newJobId(),
    sandboxId: sandbox.id,
    command: 'true',
    status: 'running',
    startedAt: new Date().toISOString(),
    droppedBytes: 0,
    timeoutAt: undefined,
    ending: undefined,
  };
  await journal.sandboxes.beginExec(command);
  await journal.sandboxes.saveExec({ ...command, status: 'completed', exitCode: 0 });
  await journal.sandboxes.saveExec({ ...command, ending: 'cancelled' });
  const [kept] = await journal.sandboxes.listExecs(sandbox.id, 1, 100);
  t.like(kept, { status: 'completed', exitCode: 0, ending: undefined });
  await journal.close();
});

test('a journal is made once and opened many times', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'journal.sqlite');
  for (let round = 0; round < 3; round += 1) await (await Journal.open(path)).close();
  const database = new DatabaseSync(path);
  const version = database.prepare('PRAGMA user_version').get()?.['user_version'];
  t.is(database.prepare('PRAGMA journal_mode').get()?.['journal_mode'], 'wal');
  database.close();
  t.true(Number(version) >= 1);
});

test('a journal of a newer agent is refused', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'journal.sqlite');
  await (await Journal.open(path)).close();
  const database = new DatabaseSync(path);
  database.exec('PRAGMA user_version = 999');
  database.close();
  await t.throwsAsync(Journal.open(path), { message: /newer agent/u });
});

test('a file that is no journal is refused and left as it is', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'journal.sqlite');
  const junk = Buffer.alloc(8192, 'junk');
  await writeFile(path, junk);
  await t.throwsAsync(Journal.open(path));
  t.deepEqual(await readFile(path), junk);
});

/** Runs a module text in a process of its own, which prints a line and waits to be killed. */
async function killed(text: string): Promise<void> {
  const child = spawn(process.execPath, ['--input-type=module', '--eval', text], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await once(child.stdout, 'data');
  child.kill('SIGKILL');
  await once(child, 'exit');
}

const module = new URL('../../../../agent/system/journal/journal.ts', import.meta.url).href;

test('what was acknowledged outlives the agent’s death', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'journal.sqlite');
  const intent = newIntent();
  await killed(`
    const { Journal } = await import('${module}');
    const journal = await Journal.open(${JSON.stringify(path)});
    await journal.beginExec(${JSON.stringify(intent)});
    console.log('begun');
    setInterval(() => {}, 1000);`);
  const journal = await Journal.open(path);
  t.deepEqual(await journal.execs(), [intent]);
  await journal.close();
});

test('a write that the storage does not take counts until one is taken', async (t) => {
  await using directory = await temporaryDirectory();
  const database = await open(join(directory.path, 'journal.sqlite'));
  await run(database, 'CREATE TABLE texts (id TEXT PRIMARY KEY)');
  const insert = (id: string): Promise<void> => run(database, 'INSERT INTO texts VALUES (?)', [id]);
  await insert('first');
  await t.throwsAsync(insert('first'), { code: 'SQLITE_CONSTRAINT' });
  await t.notThrowsAsync(retryRefused(database), 'the storage has nothing to do with that');
  await exec(database, 'PRAGMA query_only = ON');
  await t.notThrowsAsync(retryRefused(database), 'nothing was refused yet');
  await t.throwsAsync(insert('second'), { code: 'SQLITE_READONLY' });
  await t.throwsAsync(retryRefused(database), { code: 'SQLITE_READONLY' });
  await exec(database, 'PRAGMA query_only = OFF');
  await retryRefused(database);
  t.is(database.refusal, undefined);
  await insert('second');
  t.deepEqual(await all(database, 'SELECT id FROM texts'), [{ id: 'first' }, { id: 'second' }]);
  await close(database);
});

test('full storage is told by each write, and by nothing else', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'small');
  const storage = mountSmall(path, 4);
  try {
    const journal = await Journal.open(join(path, 'journal.sqlite'));
    const filler = join(path, 'filler');
    await t.throwsAsync(writeFile(filler, Buffer.alloc(4 * MiB)), { code: 'ENOSPC' });
    const long = { ...newIntent(), requestId: 'x'.repeat(MiB) };
    await t.throwsAsync(journal.beginExec(long), { code: 'SQLITE_FULL' });
    await t.notThrowsAsync(journal.check());
    await rm(filler);
    await journal.beginExec(long);
    await journal.close();
  } finally {
    storage.unmount();
  }
});

test('an agent begins with an empty log: its own syncs cover all that is in it', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'journal.sqlite');
  const intent = newIntent();
  await killed(`
    const { Journal } = await import('${module}');
    const journal = await Journal.open(${JSON.stringify(path)});
    await journal.beginExec(${JSON.stringify(intent)});
    console.log('begun');
    setInterval(() => {}, 1000);`);
  t.true((await stat(`${path}-wal`)).size > 0);
  const journal = await Journal.open(path);
  t.is((await stat(`${path}-wal`)).size, 0);
  t.deepEqual(await journal.execs(), [intent]);
  await journal.close();
});

test('one lock per data directory: freed by its holder, and by its holder’s death', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'agent.lock');
  const release = await holdLock(path);
  await t.throwsAsync(holdLock(path), { message: /another agent runs on this data directory/u });
  await release();
  await killed(`
    const { holdLock } = await import('${module}');
    await holdLock(${JSON.stringify(path)});
    console.log('held');
    setInterval(() => {}, 1000);`);
  const again = await holdLock(path);
  await again();
  t.pass();
});
