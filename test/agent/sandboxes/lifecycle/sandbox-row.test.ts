import anyTest from 'ava';
import { toRecord } from '../../../../agent/sandboxes/lifecycle/sandbox-row.ts';
import { newHostId } from '../../../../shared/ids.ts';
import { sandboxStates } from '../../../../shared/sandbox-lifecycle.ts';
import { FakeTime } from '../../../helpers/fake-time.ts';
import { newSandbox } from '../../../helpers/sandbox-records.ts';

const { serial: test } = anyTest;

const time = new FakeTime(Date.parse('2026-11-21T11:00:00Z'));
test.after.always(() => time[Symbol.dispose]());
/** By the monotonic clock. */
const NOON = time.monotonicMs + 3_600_000;
const host = { hostId: newHostId(), platform: 'amd64' } as const;

const expiry = (idleSince: number | undefined, idleTtlSeconds: number): string | undefined => {
  const { config } = newSandbox();
  const row = newSandbox({
    ...{ expiresAt: NOON, idleSince },
    config: { ...config, idleTtlSeconds },
  });
  return toRecord(row, host).expiresAt;
};

test('a running sandbox shows when its first time limit will pause it', (t) => {
  t.is(expiry(NOON - 60_000, 0), '2026-11-21T12:00:00.000Z', 'no idle limit');
  t.is(expiry(undefined, 10), '2026-11-21T12:00:00.000Z', 'something uses it');
  t.is(expiry(NOON - 60_000, 10), '2026-11-21T11:59:10.000Z');
  t.is(expiry(NOON - 60_000, 3600), '2026-11-21T12:00:00.000Z');
});

test('only a running sandbox shows an expiry', (t) => {
  for (const state of sandboxStates) {
    const { expiresAt } = toRecord(newSandbox({ state, expiresAt: NOON }), host);
    t.is(expiresAt !== undefined, state === 'running', state);
  }
});
