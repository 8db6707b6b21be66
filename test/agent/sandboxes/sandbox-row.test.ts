import test from 'ava';
import { toRecord } from '../../../agent/sandboxes/sandbox-row.ts';
import { newHostId } from '../../../shared/ids.ts';
import { sandboxStates } from '../../../shared/sandbox-lifecycle.ts';
import { newSandbox } from '../../helpers/sandbox-records.ts';

const NOON = Date.parse('2026-11-21T12:00:00Z');
const host = { hostId: newHostId(), platform: 'amd64' } as const;

const expiry = (idleSince: number | undefined, idleTtlSeconds: number): string | undefined => {
  const { config } = newSandbox();
  const row = newSandbox({
    ...{ expiresAt: NOON, idleSince },
    config: { ...config, idleTtlSeconds },
  });
  return toRecord(row, host).expiresAt;
};

test('what runs tells when its time limits pause it, by whichever comes first', (t) => {
  t.is(expiry(NOON - 60_000, 0), '2026-11-21T12:00:00.000Z', 'it may be idle for ever');
  t.is(expiry(undefined, 10), '2026-11-21T12:00:00.000Z', 'something uses it');
  t.is(expiry(NOON - 60_000, 10), '2026-11-21T11:59:10.000Z');
  t.is(expiry(NOON - 60_000, 3600), '2026-11-21T12:00:00.000Z');
});

test('only what runs has an end', (t) => {
  for (const state of sandboxStates) {
    const { expiresAt } = toRecord(newSandbox({ state, expiresAt: NOON }), host);
    t.is(expiresAt !== undefined, state === 'running', state);
  }
});
