/* Records of commands on shared storage: what a caller was told of, another host finds. */
import { randomBytes } from 'node:crypto';
import { appendFile, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import type { SandboxExecRow } from '../../../../agent/system/journal/sandbox-journal.ts';
import {
  HandedOverExecs,
  readExecs,
} from '../../../../agent/sandboxes/moving/handed-over-execs.ts';
import { newSandboxId } from '../../../../shared/ids.ts';
import { SANDBOX_LIMITS } from '../../../../agent/sandboxes/limits.ts';
import { SCHEMA_LIMITS } from '../../../../shared/schemas/limits.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';

const KEYS = [randomBytes(32)] as const;
const FILE = 'execs.sealed';

/** Commands as the journals had them when they began. */
const begun = new Map<string, SandboxExecRow>();

function running(sandboxId: string, command = 'true'): SandboxExecRow {
  const row: SandboxExecRow = {
    ...{ id: newSandboxId(), sandboxId, command, status: 'running', droppedBytes: 0 },
    ...{ timeoutAt: undefined, ending: undefined, startedAt: new Date().toISOString() },
  };
  begun.set(row.id, row);
  return row;
}
const ended = (row: SandboxExecRow): SandboxExecRow => ({
  ...row,
  status: 'completed',
  exitCode: 0,
});

/** A machine's directory and the journal of its host. */
async function newMachine() {
  const directory = await temporaryDirectory();
  const { path } = directory;
  const sandbox = { id: newSandboxId(), vmId: newSandboxId() };
  const journal: SandboxExecRow[] = [];
  const stored = {
    execIds: async () => journal.map(({ id }) => id),
    exec: async (_sandboxId: string, wanted: string) =>
      journal.find(({ id }) => id === wanted) ?? begun.get(wanted),
  };
  return Object.assign(directory, {
    ...{ sandbox, journal, file: join(path, FILE) },
    open: () => new HandedOverExecs(path, KEYS, sandbox, stored),
    /** The records that another host finds. */
    read: () => readExecs(path, KEYS, sandbox),
    states: async () =>
      (await readExecs(path, KEYS, sandbox)).map(({ id, status }) => `${id} ${status}`),
  });
}

test('a command that began is found as running, and one that ended as ended', async (t) => {
  await using machine = await newMachine();
  const handedOver = machine.open();
  t.deepEqual(await machine.read(), []);
  const [first, second] = [running(machine.sandbox.id), running(machine.sandbox.id)];
  for (const { command: _, ...state } of [first, second, ended(first)])
    await handedOver.save(state);
  t.deepEqual(await machine.states(), [`${first.id} completed`, `${second.id} running`]);
  t.like((await machine.read())[0], { command: 'true', exitCode: 0 });
});

test('the next agent completes what a former one was writing when it died', async (t) => {
  await using machine = await newMachine();
  const { journal, sandbox, file } = machine;
  const rows = [running(sandbox.id), running(sandbox.id)];
  for (const row of rows) await machine.open().save(row);
  const whole = await readFile(file, 'utf8');
  await writeFile(file, whole + whole.slice(0, whole.length / 2));
  t.is((await machine.read()).length, 1, 'the part of a line is no record');
  journal.push(...rows.map(ended));
  const next = machine.open();
  await next.save(running(sandbox.id));
  t.is((await machine.read()).length, 3);
  await next.save(running(sandbox.id));
  t.is((await machine.read()).length, 4);
});

test('an end that the journal has is not undone by a late record of the beginning', async (t) => {
  await using machine = await newMachine();
  const row = running(machine.sandbox.id);
  machine.journal.push(ended(row));
  const handedOver = machine.open();
  await handedOver.save(row);
  await handedOver.save(row);
  t.deepEqual(await machine.states(), [`${row.id} completed`]);
});

test('many commands at once are written together, and the file does not grow without end', async (t) => {
  await using machine = await newMachine();
  const { journal, sandbox, file } = machine;
  const handedOver = machine.open();
  await handedOver.complete();
  const together = Array.from({ length: 50 }, () => running(sandbox.id));
  await Promise.all(together.map((row) => handedOver.save(row)));
  const lines = (await readFile(file, 'utf8')).split('\n').length - 1;
  t.true(lines <= 3, `${lines} lines`);
  journal.push(...together.map(ended));
  let bytesMax = 0;
  for (let index = 0; index < 10 * SANDBOX_LIMITS.sandboxExecsListedMax; index += 1) {
    await handedOver.save(running(sandbox.id));
    bytesMax = Math.max(bytesMax, (await stat(file)).size);
  }
  t.true(bytesMax < 1024 * 5 * SANDBOX_LIMITS.sandboxExecsListedMax, `${bytesMax} bytes`);
  t.true((await machine.states()).includes(`${together[0]?.id} completed`));
});

test('long commands are sealed one by one, since nothing else happens meanwhile', async (t) => {
  await using machine = await newMachine();
  const { journal, sandbox, file } = machine;
  // JSON has six bytes for each of these.
  const command = '\u0001'.repeat(SCHEMA_LIMITS.commandBytesMax);
  journal.push(...Array.from({ length: 4 }, () => ended(running(sandbox.id, command))));
  const handedOver = machine.open();
  await handedOver.complete();
  const more = Array.from({ length: 4 }, () => running(sandbox.id, command));
  await Promise.all(more.map((row) => handedOver.save(row)));
  const lines = (await readFile(file, 'latin1')).split('\n').slice(0, -1);
  t.is(lines.length, journal.length + more.length);
  const found = await machine.read();
  t.deepEqual(
    found.map(({ id }) => id),
    [...journal, ...more].map(({ id }) => id),
  );
  t.true(found.every((row) => row.command === command));
});

test('a record that could not be written is written with the next one', async (t) => {
  await using machine = await newMachine();
  const { sandbox, path, file } = machine;
  const handedOver = machine.open();
  const [first, second] = [running(sandbox.id), running(sandbox.id)];
  await handedOver.complete();
  await rename(path, `${path}-moved`);
  await t.throwsAsync(handedOver.save(first), { code: 'ENOENT' });
  await t.throwsAsync(handedOver.complete(), { code: 'ENOENT' });
  await t.throwsAsync(stat(file), { code: 'ENOENT' }, 'nothing makes the directory again');
  await rename(`${path}-moved`, path);
  await handedOver.save(second);
  t.deepEqual(await machine.states(), [`${first.id} running`, `${second.id} running`]);
  await rm(file);
  await t.throwsAsync(
    handedOver.save(ended(first)),
    { code: 'ENOENT' },
    'another host has the machine',
  );
});

test('records of another machine or sandbox are refused', async (t) => {
  await using machine = await newMachine();
  await using other = await newMachine();
  await machine.open().save(running(machine.sandbox.id));
  await other.open().save(running(other.sandbox.id));
  await appendFile(machine.file, await readFile(other.file));
  await t.throwsAsync(machine.read(), { message: /sealed with another key/u });
  await using mixed = await newMachine();
  await mixed.open().save(running(newSandboxId()));
  await t.throwsAsync(mixed.read(), { message: /another sandbox/u });
});
