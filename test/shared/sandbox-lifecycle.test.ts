import test from 'ava';
import {
  assertTransition,
  explainRefusal,
  isTransitional,
  sandboxActions,
  sandboxStates,
  sandboxTransitions,
  type SandboxState,
  statusOfState,
  verdictOn,
} from '../../shared/sandbox-lifecycle.ts';

test('every action that changes the state follows a transition of the table', (t) => {
  for (const state of sandboxStates) {
    for (const action of sandboxActions) {
      const verdict = verdictOn(state, action);
      if (verdict.kind !== 'begin' || verdict.to === 'deleted') continue;
      const { to } = verdict;
      t.notThrows(() => assertTransition(state, to), `${action} of a ${state} sandbox`);
    }
  }
});

test('no state follows itself, and a transition outside the table throws', (t) => {
  for (const from of sandboxStates) {
    for (const to of sandboxStates) {
      const isListed = sandboxTransitions[from].includes(to);
      if (isListed) t.not(from, to);
      else t.throws(() => assertTransition(from, to), { message: /cannot go/u });
    }
  }
});

test('every state can be reached from a new sandbox, and every transitional one can fail or end', (t) => {
  const reached = new Set<SandboxState>(['pending_start', 'pending_image']);
  for (const state of reached) {
    for (const next of sandboxTransitions[state]) reached.add(next);
  }
  t.deepEqual([...reached].sort(), [...sandboxStates].sort());
  for (const state of sandboxStates.filter(isTransitional)) {
    // A sandbox that was asked to stop counts as stopped however its machine ended.
    const end = state === 'stopping' ? 'stopped' : 'failed';
    t.true(sandboxTransitions[state].includes(end), state);
  }
});

test('only a sandbox at rest can be deleted, and only a running one runs commands', (t) => {
  const deletable = sandboxStates.filter((state) => verdictOn(state, 'delete').kind === 'begin');
  t.deepEqual(deletable, ['stopped', 'exited', 'failed']);
  for (const action of ['exec', 'connect'] as const) {
    const able = sandboxStates.filter((state) => verdictOn(state, action).kind === 'allow');
    t.deepEqual(able, ['running']);
  }
});

const cells: readonly [SandboxState, (typeof sandboxActions)[number], string][] = [
  ['paused', 'start', 'pending_start'],
  ['paused', 'resume', 'pending_resume'],
  ['paused', 'stop', 'stopped'],
  ['running', 'start', 'unchanged'],
  ['running', 'pause', 'pausing'],
  ['pending_image', 'start', 'unchanged'],
  ['pending_image', 'stop', 'stopped'],
  ['pending_image', 'fork', 'sandbox_start_conflict'],
  ['pending_start', 'start', 'unchanged'],
  ['pending_start', 'pause', 'sandbox_start_conflict'],
  ['pending_start', 'stop', 'stopping'],
  ['pending_resume', 'start', 'sandbox_start_conflict'],
  ['pending_resume', 'resume', 'unchanged'],
  ['draining', 'resume', 'running'],
  ['draining', 'start', 'running'],
  ['draining', 'stop', 'stopping'],
  ['draining', 'pause', 'unchanged'],
  ['pausing', 'stop', 'sandbox_pausing'],
  ['pausing', 'pause', 'unchanged'],
  ['stopping', 'start', 'sandbox_stopping'],
  ['stopped', 'pause', 'unchanged'],
  ['stopped', 'stop', 'unchanged'],
  ['stopped', 'fork', 'allow'],
  ['exited', 'fork', 'sandbox_terminated'],
  ['failed', 'start', 'pending_start'],
];

for (const [state, action, expected] of cells) {
  test(`${action} of a ${state} sandbox: ${expected}`, (t) => {
    const verdict = verdictOn(state, action);
    const begun = verdict.kind === 'begin' ? verdict.to : undefined;
    const found: string = begun ?? (verdict.kind === 'refuse' ? verdict.code : verdict.kind);
    t.is(found, expected);
  });
}

test('callers see all pending states as one', (t) => {
  t.deepEqual(
    [...new Set(sandboxStates.map((state) => statusOfState(state)))],
    ['pending', 'running', 'pausing', 'paused', 'stopping', 'stopped', 'exited', 'failed'],
  );
});

for (const [state, action, sentence] of [
  ['running', 'delete', 'the sandbox is running: stop it first'],
  ['paused', 'delete', 'the sandbox is paused: stop it first'],
  ['paused', 'exec', 'the sandbox is paused: resume it first'],
  ['stopped', 'connect', 'the sandbox is stopped: start it first'],
  ['failed', 'resume', 'the sandbox is failed: its memory is gone, so start it instead'],
  [
    'draining',
    'exec',
    'the sandbox is pausing: resume it to cancel the pause, which waits for requests',
  ],
  ['stopping', 'start', 'the sandbox is stopping: start is possible once that is over'],
  ['pending_resume', 'pause', 'the sandbox is pending resume: pause is possible once that is over'],
] as const) {
  test(`a refused ${action} of a ${state} sandbox says what makes it possible`, (t) => {
    t.is(verdictOn(state, action).kind, 'refuse');
    t.is(explainRefusal(state, action), sentence);
  });
}
