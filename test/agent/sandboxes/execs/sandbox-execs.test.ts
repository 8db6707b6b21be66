/*
 * The commands of one sandbox, over channels whose far side the test plays: what happens between
 * two steps of the agent is what a guest seldom does, and does.
 */
import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import test from 'ava';
import type { GuestChannel } from '../../../../agent/machines/guest-link/guest-channel.ts';
import { GuestUnavailableError } from '../../../../agent/machines/guest-link/guest-errors.ts';
import { SANDBOX_LIMITS } from '../../../../agent/sandboxes/limits.ts';
import { SCHEMA_LIMITS } from '../../../../shared/schemas/limits.ts';
import {
  GUEST_LIMITS,
  type GuestFrame,
} from '../../../../agent/machines/guest-link/guest-protocol.ts';
import { openExecs, spec } from '../../../helpers/played-execs.ts';
import { exitOf, orderly, PlayedGuest, recordOf } from '../../../helpers/played-guest.ts';
import { waitFor } from '../../../helpers/wait.ts';

const MODULES = [
  'agent/system/journal/journal.ts',
  'agent/sandboxes/execs/sandbox-execs.ts',
  'shared/log.ts',
].map((path) => new URL(`../../../../${path}`, import.meta.url).href);

/** A guest that tells of these processes, and right behind its list of their ends. */
const guestThatEnds = (ids: readonly string[], ends: readonly GuestFrame[]): PlayedGuest => {
  const records = Buffer.concat(ids.map((id) => recordOf(id, 0)));
  return new PlayedGuest((frame) =>
    frame.type === 'list'
      ? [{ type: 'records', request: frame.request, next: 0, records }, ...ends]
      : frame.type === 'follow'
        ? [{ type: 'followed', request: frame.request, offset: frame.offset }]
        : orderly(frame),
  );
};

test('an end that comes right behind the list of a new channel is not missed', async (t) => {
  await using opened = await openExecs();
  const { execs, link } = opened;
  const { row } = await execs.begin(spec('true'));
  link.break();
  await link.open(guestThatEnds([row.id], [exitOf(row.id, 0)]));
  await waitFor('its end', async () => (await execs.read(row.id)).exec.status === 'completed');
  t.pass();
});

test('a command waits for a guest that is about to answer', async (t) => {
  await using opened = await openExecs();
  const { execs, link } = opened;
  link.break();
  const begun = execs.begin(spec('true'));
  await turn();
  await link.open(new PlayedGuest(orderly));
  t.is((await begun).row.status, 'running');
});

test('an end that comes while another command is taken up is not missed, nor the output before it', async (t) => {
  await using opened = await openExecs();
  const { execs, link } = opened;
  const [first, second] = [await execs.begin(spec('one')), await execs.begin(spec('two'))];
  link.break();
  const [a, b] = [first.row.id, second.row.id];
  const guest = new PlayedGuest((frame) => {
    const { request } = frame;
    if (frame.type === 'list') {
      const records = Buffer.concat([recordOf(a, 0), recordOf(b, 0)]);
      return [{ type: 'records', request, next: 0, records }];
    }
    if (frame.type !== 'follow') return orderly(frame);
    const followed: GuestFrame = { type: 'followed', request, offset: frame.offset };
    // The second one ends, with output that nobody follows yet, while the first one is taken up.
    if (frame.id === a) return [exitOf(b, 5), followed];
    const bytes = Buffer.from('tail\n');
    return [followed, { type: 'output', request: 0, id: b, stream: 1, offset: 0, bytes }];
  });
  await link.open(guest);
  await waitFor('its end', async () => (await execs.read(b)).exec.status === 'completed');
  t.is(String((await execs.read(b)).stdout), 'tail\n');
  t.is((await execs.read(a)).exec.status, 'running');
});

test('a command that ended without the agent finished then, and never before its start or after now', async (t) => {
  await using opened = await openExecs();
  const { execs, link } = opened;
  const [first, second] = [await execs.begin(spec('one')), await execs.begin(spec('two'))];
  const startedAt = Date.parse(first.row.startedAt);
  await sleep(300);
  link.break();
  const records = Buffer.concat([
    recordOf(first.row.id, 0, 200n),
    recordOf(second.row.id, 0, 10n ** 15n), // A guest may say anything.
  ]);
  const reopenedAt = Date.now();
  await link.open(
    new PlayedGuest((frame) =>
      frame.type === 'list'
        ? [{ type: 'records', request: frame.request, next: 0, records }]
        : orderly(frame),
    ),
  );
  const [honest, liar] = [await first.ended, await second.ended];
  const finishedAt = Date.parse(honest.finishedAt ?? '');
  t.true(finishedAt >= Math.max(startedAt, reopenedAt - 200) && finishedAt <= Date.now() - 200);
  t.is(honest.executeTimeMs, finishedAt - startedAt);
  t.like(liar, { finishedAt: liar.startedAt, executeTimeMs: 0 });
});

test('a command that ended in time is not timed out by an agent that comes back late', async (t) => {
  await using opened = await openExecs();
  const { execs, link } = opened;
  const { row } = await execs.begin({ ...spec('true'), timeoutSeconds: 1 });
  link.break();
  // Long enough for its time to run out before the guest is heard again.
  await waitFor('its time to run out', async () => {
    return (await opened.journal.exec(opened.sandboxId, row.id))?.ending === 'timed_out';
  });
  const records = recordOf(row.id, 0, BigInt(Date.now() - Date.parse(row.startedAt)));
  await link.open(
    new PlayedGuest((frame) =>
      frame.type === 'list'
        ? [{ type: 'records', request: frame.request, next: 0, records }]
        : orderly(frame),
    ),
  );
  await waitFor('its end', async () => (await execs.read(row.id)).exec.status !== 'running');
  t.like((await execs.read(row.id)).exec, { status: 'completed', exitCode: 0 });
});

test('no more commands begin than may run, however many are asked for at once', async (t) => {
  await using opened = await openExecs();
  const { execs } = opened;
  const begun = await Promise.allSettled(
    Array.from({ length: 5 }, (_, index) => execs.begin(spec(`sleep ${index}`))),
  );
  t.is(begun.filter(({ status }) => status === 'fulfilled').length, 2);
  await t.throwsAsync(execs.begin(spec('true')), {
    message: /as many commands as it may \(\d+\)/u,
  });
  t.is((await execs.list()).length, 2);
});

test('a command that the guest has no place for is refused before it is accepted', async (t) => {
  await using opened = await openExecs();
  const { execs, link } = opened;
  link.break();
  // All but one place are taken, as in a fork of a fork whose ancestors were busy.
  const ids = Array.from({ length: GUEST_LIMITS.processesMax - 1 }, () => randomUUID());
  const perPage = GUEST_LIMITS.recordsPerPageMax;
  await link.open(
    new PlayedGuest((frame) => {
      if (frame.type !== 'list') return orderly(frame);
      const to = frame.after + perPage;
      const records = Buffer.concat(ids.slice(frame.after, to).map((id) => recordOf(id, 0)));
      const next = to < ids.length ? to : 0;
      return [{ type: 'records', request: frame.request, next, records }];
    }),
  );
  const begun = await Promise.allSettled([execs.begin(spec('one')), execs.begin(spec('two'))]);
  t.deepEqual(
    begun.map(({ status }) => status),
    ['fulfilled', 'rejected'],
  );
  t.like(begun[1], { reason: { code: 'rate_limited' } });
  t.deepEqual(
    (await execs.list()).map(({ status }) => status),
    ['running'],
  );
});

test('long commands are listed by their beginnings, and shown whole', async (t) => {
  await using opened = await openExecs();
  const { execs } = opened;
  const lengthMax = SANDBOX_LIMITS.sandboxCommandListedMax;
  const [short, long] = ['x'.repeat(lengthMax), `${'ü'.repeat(lengthMax)}y`];
  const [{ row: whole }, { row: cut }] = [
    await execs.begin(spec(short)),
    await execs.begin(spec(long)),
  ];
  const listed = await execs.list();
  t.deepEqual(
    listed.map(({ id, command, isCommandCut }) => [id, command.length, isCommandCut]),
    [
      [whole.id, lengthMax, undefined],
      [cut.id, lengthMax, true],
    ],
  );
  t.is((await execs.read(cut.id)).exec.command, long);
  t.false('command' in cut, 'it is not kept in memory while it runs');
});

test('an agent with little memory takes up commands that have very long texts', async (t) => {
  await using opened = await openExecs();
  const { journal, sandboxId, journalPath, output } = opened;
  // A character above U+00FF makes each of the others take two bytes in memory: 100 MiB in all.
  const command = `${'x'.repeat(SCHEMA_LIMITS.commandBytesMax - 2)}ā`;
  const count = 50;
  for (let index = 0; index < count; index += 1) {
    await journal.beginExec({
      ...{ id: randomUUID(), sandboxId, command, timeoutAt: undefined, ending: undefined },
      ...{ status: 'running', startedAt: new Date().toISOString(), droppedBytes: 0 },
    });
  }
  const load = `
    const [{ Journal }, { SandboxExecs }, { createLogger }] = await Promise.all(
      ${JSON.stringify(MODULES)}.map((module) => import(module)),
    );
    const { sandboxes: journal } = await Journal.open(${JSON.stringify(journalPath)});
    const outputs = () => ({ directory: ${JSON.stringify(output)}, onThread: (call) => call() });
    const parts = { outputs, journal, log: createLogger('test', {}) };
    await new SandboxExecs('${sandboxId}', ${count}, parts).load();
    console.log((await journal.runningExecs('${sandboxId}')).length);
    process.exit();`;
  const args = ['--max-old-space-size=64', '--input-type=module', '--eval', load];
  const { stdout } = await promisify(execFile)(process.execPath, args);
  t.is(Number(stdout), count);
});

test('commands that run do not push out those that have ended: a hundred of them stay', async (t) => {
  await using opened = await openExecs();
  const { execs, journal, sandboxId } = opened;
  const ended = Array.from({ length: 101 }, () => randomUUID());
  const startedAt = new Date().toISOString();
  for (const id of ended) {
    await journal.beginExec({
      ...{ id, sandboxId, command: 'true', timeoutAt: undefined, ending: undefined },
      ...{ status: 'completed', startedAt, droppedBytes: 0 },
    });
  }
  for (const command of ['one', 'two']) await execs.begin(spec(command));
  await waitFor('one to be dropped', async () => {
    return (await journal.endedExecs(sandboxId)).length < ended.length;
  });
  t.deepEqual(await journal.endedExecs(sandboxId), ended.slice(-100));
});

/**
 * A guest that answers no request to start anything.
 * @returns it, and what it was asked to start
 */
const deafGuest = (): { guest: PlayedGuest; asked: string[] } => {
  const asked: string[] = [];
  const guest = new PlayedGuest((frame) => {
    if (frame.type !== 'start') return orderly(frame);
    asked.push(frame.id);
    return [];
  });
  return { guest, asked };
};

test('a command whose start a broken channel has lost is started on the next one, once', async (t) => {
  await using opened = await openExecs();
  const { execs, link } = opened;
  link.break();
  const deaf = deafGuest();
  await link.open(deaf.guest);
  const { id, ...rest } = spec('late');
  const beginning = execs.begin({ id, ...rest });
  await waitFor('the request', async () => deaf.asked.length === 1);
  link.break();
  const next = deafGuest();
  await link.open(next.guest);
  await waitFor('another request', async () => next.asked.length === 1);
  t.deepEqual([deaf.asked, next.asked], [[id], [id]]);
  await beginning;
  t.is((await execs.read(id)).exec.status, 'running');
  link.break();
  await link.open(guestThatEnds([id], [exitOf(id, 0)])); // The process was started after all.
  await waitFor('its end', async () => (await execs.read(id)).exec.status === 'completed');
});

test('a command that was cancelled before the guest knew it is not started', async (t) => {
  await using opened = await openExecs();
  const { execs, link, journal, sandboxId } = opened;
  link.break();
  const deaf = deafGuest();
  await link.open(deaf.guest);
  const { id, ...rest } = spec('late');
  const beginning = execs.begin({ id, ...rest });
  await waitFor('the request', async () => deaf.asked.length === 1);
  const cancelling = execs.cancel(id);
  const isJournalled = async (): Promise<boolean> =>
    (await journal.exec(sandboxId, id))?.ending === 'cancelled';
  await waitFor('the journal', isJournalled);
  await journal.durable();
  await turn(); // Now the command has heard that it is.
  link.break();
  await beginning;
  const next = deafGuest();
  await link.open(next.guest);
  t.is((await cancelling).status, 'cancelled');
  t.deepEqual(next.asked, []);
});

test('a guest is asked again on its next channel when one breaks, but not what it has refused', async (t) => {
  await using opened = await openExecs();
  const { link } = opened;
  const { signal } = new AbortController();
  const asked: (GuestChannel | undefined)[] = [];
  const answered = link.call(signal, async (channel) => {
    asked.push(channel);
    if (asked.length > 1) return;
    link.break();
    throw new GuestUnavailableError('the guest hung up');
  });
  await link.open(new PlayedGuest(orderly));
  await answered;
  t.is(asked.length, 2);
  t.not(asked[0], asked[1]);
  const refused = link.call(signal, () => Promise.reject(new Error('no')));
  await t.throwsAsync(refused, { message: 'no' });
  link.break();
  const waiting = new AbortController();
  const given = link.call(waiting.signal, async () => undefined);
  waiting.abort();
  await t.throwsAsync(given, { name: 'AbortError' });
});
