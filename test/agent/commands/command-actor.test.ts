/* Commands in real containers, with a real journal whose syncs the test holds up or fails. */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import anyTest, { type ExecutionContext } from 'ava';
import { ContainerPool } from '../../../agent/commands/container-pool.ts';
import { closeTails } from '../../../agent/commands/container.ts';
import { CommandActor } from '../../../agent/commands/command-actor.ts';
import { Journal } from '../../../agent/system/journal/journal.ts';
import { FairTurns } from '../../../agent/system/queues/fair-turns.ts';
import { interceptFailpoints } from '../../../agent/system/failpoint.ts';
import { AppError } from '../../../shared/errors.ts';
import { newAccountId, newJobId, newRequestId } from '../../../shared/ids.ts';
import { createLogger } from '../../../shared/log.ts';
import { openContainers } from '../../helpers/containers.ts';
import { waitFor } from '../../helpers/wait.ts';

// The failpoints are the whole process's.
const { serial: test } = anyTest;

const LONGEST_MS = 60_000;

/**
 * Parts of a host that commands need, without an agent.
 * @param startingMax with 0 no container ever starts
 * @param imageDir without it, commands run in the default image
 */
async function openCommands({ startingMax = 1, imageDir = '' } = {}) {
  const containers = await openContainers();
  const journal = await Journal.open(join(containers.directory, 'journal.sqlite'));
  const log = createLogger('test', {});
  const host = imageDir === '' ? containers.host : { ...containers.host, imageDir };
  const pool = new ContainerPool(host, { readyMax: 1, startingMax }, log);
  const turns = new FairTurns({ count: 2, perAccountMax: 2, refusal: '' });
  return {
    journal,
    pool,
    turns,
    containers: () => readdir(containers.host.containersDir),
    /** A command, and what it has put out so far. */
    command(line: string, { id = newJobId(), dataOnly = false, leftMs = LONGEST_MS } = {}) {
      const pieces: Buffer[] = [];
      const spec = {
        ...{ id, accountId: newAccountId(), requestId: newRequestId(), mounts: [] },
        command: () => line,
        dataOnly,
        deadlineAt: Date.now() + leftMs,
        output: {
          write: (piece: Buffer) => {
            pieces.push(Buffer.from(piece));
            return undefined;
          },
        },
      };
      const actor = new CommandActor({ journal, pool, turns, log }, spec, new Map());
      return { id, actor, output: () => Buffer.concat(pieces).toString() };
    },
    async [Symbol.asyncDispose]() {
      await pool.close();
      await journal.close();
      await containers[Symbol.asyncDispose]();
    },
  };
}

/** Awaits `by` before each sync of a command's row. */
function beforeSyncs(t: ExecutionContext, by: () => Promise<void>): void {
  interceptFailpoints(async (point) => {
    if (point === 'before sync exec') await by();
  });
  t.teardown(() => interceptFailpoints(undefined));
}

test('a command runs while its row becomes durable, and its end is told after that', async (t) => {
  await using commands = await openCommands();
  const held = Promise.withResolvers<void>();
  beforeSyncs(t, () => held.promise);
  commands.pool.fill();
  const container = await waitFor('a container', async () => (await commands.containers())[0]);
  const { id, actor, output } = commands.command('echo ended');
  let isTold = false;
  const told = actor
    .run(() => undefined)
    .finally(() => {
      isTold = true;
    });
  await waitFor('the end of its output', () => Promise.resolve(output() === 'ended\n'));
  t.is((await commands.journal.execs())[0]?.id, id, 'the row is there before the command');
  await waitFor('its container to be gone', async () => {
    return !(await commands.containers()).includes(container);
  });
  t.false(isTold);
  held.resolve();
  const exit = await told;
  t.is(exit.exitCode, 0);
  await closeTails(exit.stdout, exit.stderr);
  await actor.cleared;
  t.deepEqual(await commands.journal.execs(), []);
});

test('a command whose row cannot become durable is ended, and its outcome is not known', async (t) => {
  await using commands = await openCommands();
  const held = Promise.withResolvers<void>();
  beforeSyncs(t, () => held.promise);
  const { actor, output } = commands.command('echo begun; exec sleep 1000');
  const told = actor.run(() => undefined);
  await waitFor('its output', () => Promise.resolve(output() === 'begun\n'));
  held.reject(new Error('no storage'));
  await t.throwsAsync(told, { code: 'outcome_unknown', message: /ended it/u });
  await actor.cleared;
});

test('a command that ended before its sync failed has no known outcome either', async (t) => {
  await using commands = await openCommands();
  const held = Promise.withResolvers<void>();
  beforeSyncs(t, () => held.promise);
  const { actor, output } = commands.command('echo ended');
  const told = actor.run(() => undefined);
  await waitFor('its output', () => Promise.resolve(output() === 'ended\n'));
  held.reject(new Error('no storage'));
  await t.throwsAsync(told, { code: 'outcome_unknown' });
  await actor.cleared;
});

test('a search is told before its row is durable, since it may be repeated', async (t) => {
  await using commands = await openCommands();
  beforeSyncs(t, () => Promise.reject(new Error('no storage')));
  const { actor, output } = commands.command('echo found', { dataOnly: true });
  const { exitCode, stdout, stderr } = await actor.run(() => undefined);
  await closeTails(stdout, stderr);
  t.deepEqual([exitCode, output()], [0, 'found\n']);
  await actor.cleared;
  t.deepEqual(await commands.journal.execs(), []);
});

test('a command that was begun is not begun again, whether or not its row is durable yet', async (t) => {
  await using commands = await openCommands();
  const held = Promise.withResolvers<void>();
  beforeSyncs(t, () => held.promise);
  const first = commands.command('echo first');
  const told = first.actor.run(() => undefined);
  await waitFor('its output', () => Promise.resolve(first.output() === 'first\n'));
  const again = commands.command('echo again', { id: first.id });
  await t.throwsAsync(
    again.actor.run(() => undefined),
    { code: 'outcome_unknown', message: /begun before/u },
  );
  t.is(again.output(), '');
  held.resolve();
  const exit = await told;
  await closeTails(exit.stdout, exit.stderr);
  await first.actor.cleared;
});

test('a command whose turn does not come by its deadline was not begun', async (t) => {
  await using commands = await openCommands();
  const taken = [1, 2].map(() => commands.turns.tryAcquire('another account'));
  const { actor } = commands.command('true', { leftMs: 200 });
  let isBegun = false;
  const told = actor.run(() => {
    isBegun = true;
  });
  await t.throwsAsync(told, { code: 'unavailable' });
  t.false(isBegun);
  const search = commands.command('true', { leftMs: 200, dataOnly: true });
  await t.throwsAsync(
    search.actor.run(() => undefined),
    { code: 'timeout' },
    'its deadline is an end like any other',
  );
  for (const turn of taken) turn?.release();
});

test('a command that is ended before a container has it was not begun', async (t) => {
  await using commands = await openCommands();
  const { actor, output } = commands.command('echo begun');
  const told = actor.run(() => {
    actor.end(new AppError('outcome_unknown', 'the host shut down'));
  });
  await t.throwsAsync(told, { code: 'unavailable', message: /the host shut down; .*not begun/u });
  await actor.cleared;
  t.is(output(), '');
  const cancelled = commands.command('echo begun');
  const gone = cancelled.actor.run(() => {
    cancelled.actor.end(new AppError('cancelled', 'the caller hung up'));
  });
  await t.throwsAsync(gone, { code: 'cancelled' });
});

test('a command that waits for a container ends at its deadline, and holds nothing then', async (t) => {
  await using commands = await openCommands({ startingMax: 0 });
  const { actor } = commands.command('true', { leftMs: 200 });
  await t.throwsAsync(
    actor.run(() => undefined),
    { code: 'unavailable', message: /deadline/u },
  );
  t.is(commands.turns.used, 0);
  await actor.cleared;
  t.deepEqual(await commands.journal.execs(), []);
});

test('a command that waits for a container ends when its caller hangs up', async (t) => {
  await using commands = await openCommands({ startingMax: 0 });
  const { id, actor } = commands.command('true');
  const told = actor.run(() => undefined);
  await waitFor('its row', async () => (await commands.journal.execs())[0]?.id === id);
  actor.end(new AppError('cancelled', 'the caller hung up'));
  await t.throwsAsync(told, { code: 'cancelled' });
  t.is(commands.turns.used, 0);
});

test('a container goes to a taker that still waits', async (t) => {
  await using commands = await openCommands();
  const leaving = new AbortController();
  const left = commands.pool.take(leaving.signal);
  const waiting = commands.pool.take(new AbortController().signal);
  const reason = new AppError('cancelled', 'the caller hung up');
  leaving.abort(reason);
  t.is(await t.throwsAsync(left), reason);
  t.true((await waiting).isUsable);
});

test('a command whose container cannot be started may be repeated', async (t) => {
  await using commands = await openCommands({ imageDir: '/nonexistent' });
  const { actor } = commands.command('true');
  const error = await t.throwsAsync(
    actor.run(() => undefined),
    { code: 'unavailable', message: /could not start a container/u },
  );
  t.true(error.cause instanceof Error);
});
