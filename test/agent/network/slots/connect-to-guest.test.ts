import { once } from 'node:events';
import test from 'ava';
import { connectToGuest } from '../../../../agent/network/slots/connect-to-guest.ts';
import { removeSlot, slotNamespaces } from '../../../../agent/network/slots/slot-namespace.ts';
import { planSlot } from '../../../../agent/network/slots/slot.ts';
import { Outside } from '../../../helpers/outside.ts';
import { RoutedHost } from '../../../helpers/routed-host.ts';
import { probe, SlotHost, TestPeer } from '../../../helpers/slots.ts';

const timeoutMs = 60_000;

test('the host connects to a guest’s ports from within its slot, and nobody else does', async (t) => {
  await using outside = await Outside.open();
  await using host = await RoutedHost.open(outside);
  const slot = await host.pool.lease();
  await using peer = await TestPeer.on(slot);
  await peer.serve('tcp-echo', 8080);

  const sockets = await Promise.all(
    Array.from({ length: 20 }, () => connectToGuest(slot, 8080, { timeoutMs })),
  );
  for (const socket of sockets) {
    socket.write('hello');
    const [answer] = (await once(socket, 'data')) as [Buffer];
    t.is(answer.toString(), `${slot.gatewayAddress} hello`);
    socket.destroy();
  }
  await t.throwsAsync(connectToGuest(slot, 8081, { timeoutMs }), { code: 'ECONNREFUSED' });
  const targets = [slot.address, slot.proxiedAddress, slot.guestAddress].map(
    (each) => `${each}:8080`,
  );
  t.deepEqual(await probe(host.router, ...targets), ['silent', 'silent', 'silent']);
  t.deepEqual(await probe(outside, ...targets), ['silent', 'silent', 'silent']);
});

test('a guest that does not answer, a slot that is gone, a caller that gives up', async (t) => {
  await using host = new SlotHost();
  const slot = planSlot(host.hostId, 0);
  await t.throwsAsync(connectToGuest(slot, 80, { timeoutMs }), { code: 'ENOENT' });
  const kind = { guestLink: 'tap', routerOf: undefined } as const;
  await slotNamespaces(kind).make(slot); // Its rules drop everything.
  await t.throwsAsync(connectToGuest(slot, 80, { timeoutMs: 50 }), { code: 'ETIMEDOUT' });
  const reason = new Error('enough');
  const signal = AbortSignal.timeout(50);
  const abort = new AbortController();
  signal.addEventListener('abort', () => abort.abort(reason));
  const waiting = connectToGuest(slot, 80, { timeoutMs, signal: abort.signal });
  t.is(await t.throwsAsync(waiting), reason);
  const early = new AbortController();
  const beginning = connectToGuest(slot, 80, { timeoutMs, signal: early.signal });
  early.abort(reason); // Before there is a socket.
  t.is(await t.throwsAsync(beginning), reason);
  await removeSlot(slot, kind);
});
