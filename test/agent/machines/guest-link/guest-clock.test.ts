/* The clock of a guest that the test plays: what the host asks for, and how it corrects it. */
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest from 'ava';
import { GuestChannel } from '../../../../agent/machines/guest-link/guest-channel.ts';
import {
  GUEST_FAILURES,
  type GuestFrame,
  type HostFrame,
} from '../../../../agent/machines/guest-link/guest-protocol.ts';
import { orderly, PlayedGuest } from '../../../helpers/played-guest.ts';

const { serial: test } = anyTest;
const HOUR_MS = 3_600_000;
/** The host's clock, whatever a test sets it to. */
const steady = Date.now.bind(Date);
/** When the monotonic clock of these guests began. */
const ZERO_MS = steady() - HOUR_MS;

/** Guests with a clock that is behind by so much, and all that they were asked. */
class ClockedGuest {
  readonly asked: HostFrame[] = [];
  readonly guest: PlayedGuest;
  behindMs: number;

  constructor(behindMs: number, late: (frame: HostFrame) => number = () => 0) {
    this.behindMs = behindMs;
    this.guest = new PlayedGuest((frame) => {
      this.asked.push(frame);
      const lateMs = late(frame);
      if (lateMs === 0) return this.#answer(frame);
      setTimeout(() => this.guest.say(...this.#answer(frame)), lateMs);
      return [];
    });
  }

  get corrections(): readonly number[] {
    return this.asked.flatMap((frame) => (frame.type === 'setClock' ? [frame.zeroUs / 1000] : []));
  }

  #answer(frame: HostFrame): GuestFrame[] {
    const { request } = frame;
    if (frame.type === 'setClock') this.behindMs = ZERO_MS - frame.zeroUs / 1000;
    if (frame.type !== 'readClock') return orderly(frame);
    const now = steady();
    const realUs = Math.round((now - this.behindMs) * 1000);
    return [{ type: 'time', request, realUs, monotonicUs: (now - ZERO_MS) * 1000 }];
  }
}

const near = (value: number, expected: number): boolean => Math.abs(value - expected) < 100;

test('a clock that is off is corrected before the guest is thawed, and once', async (t) => {
  for (const behindMs of [HOUR_MS, -HOUR_MS, 4690]) {
    const played = new ClockedGuest(behindMs);
    const { channel } = await GuestChannel.open(played.guest.theirs);
    await channel.thaw();
    await channel.checkClock();
    const [zeroMs = 0, ...others] = played.corrections;
    t.true(near(zeroMs, ZERO_MS), String(zeroMs - ZERO_MS));
    t.is(others.length, 0);
    const order = played.asked.map(({ type }) => type);
    t.true(order.indexOf('setClock') < order.indexOf('thaw'));
    channel.close();
  }
});

test('a clock that is right is left alone', async (t) => {
  for (const behindMs of [0, 20, -20]) {
    const played = new ClockedGuest(behindMs);
    const { channel } = await GuestChannel.open(played.guest.theirs);
    await channel.thaw();
    t.deepEqual(played.corrections, []);
    channel.close();
  }
});

test('an answer that was held up is not trusted: the clock is read again', async (t) => {
  let readings = 0;
  const played = new ClockedGuest(4690, ({ type }) => {
    if (type === 'readClock') readings += 1;
    return type === 'readClock' && readings === 1 ? 1500 : 0;
  });
  const { channel } = await GuestChannel.open(played.guest.theirs);
  await channel.checkClock();
  t.is(readings, 2);
  t.true(near(played.corrections[0] ?? 0, ZERO_MS));
  channel.close();
});

test('a guest that cannot tell the time is pinged and thawed', async (t) => {
  const asked: string[] = [];
  const guest = new PlayedGuest((frame) => {
    asked.push(frame.type);
    const { request } = frame;
    const code = GUEST_FAILURES.invalid;
    return frame.type === 'readClock'
      ? [{ type: 'failed', request, code, errno: 0, step: '' }]
      : orderly(frame);
  });
  const { channel } = await GuestChannel.open(guest.theirs);
  await channel.thaw();
  await sleep(0);
  await channel.checkClock();
  t.deepEqual(asked, ['hello', 'list', 'readClock', 'ping', 'thaw', 'ping']);
  channel.close();
});

test('a step of the host’s own clock, as after it was suspended, is passed on', async (t) => {
  const played = new ClockedGuest(0);
  const { channel } = await GuestChannel.open(played.guest.theirs);
  await channel.checkClock();
  t.deepEqual(played.corrections, []);
  Date.now = () => steady() + HOUR_MS;
  t.teardown(() => {
    Date.now = steady;
  });
  // By then, none of the regular questions is due.
  await sleep(1000);
  const [zeroMs = 0] = played.corrections;
  t.true(near(zeroMs, ZERO_MS + HOUR_MS), String(zeroMs - ZERO_MS));
  channel.close();
});
