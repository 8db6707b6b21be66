/*
 * A guest may send anything. The host's end of the channel accepts what a sound guest agent sends,
 * and ends at the first thing else, with a clear error and without having held more than its
 * bounds.
 */
import { randomUUID } from 'node:crypto';
import { setImmediate } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import { GuestChannel } from '../../../agent/machines/guest-link/guest-channel.ts';
import {
  encodeGuestFrame,
  GUEST_LIMITS,
  GUEST_PROTOCOL_VERSION,
  type GuestFrame,
} from '../../../agent/machines/guest-link/guest-protocol.ts';
import { processSpec } from '../../helpers/guest.ts';
import { exitOf, orderly, PlayedGuest, welcome } from '../../helpers/played-guest.ts';
import { MiB } from '../../../shared/units.ts';

async function endsWith(
  t: ExecutionContext,
  channel: GuestChannel,
  act: () => void,
): Promise<void> {
  const closed = new Promise<Error | undefined>((resolve) => {
    channel.once('closed', resolve);
  });
  act();
  t.is((await closed)?.name, 'GuestProtocolError');
  await t.throwsAsync(async () => channel.ping(), { name: 'GuestUnavailableError' });
}

const id = randomUUID();
const output = (offset: number, bytes: Buffer, stream = 1): GuestFrame => ({
  type: 'output',
  request: 0,
  id,
  stream,
  offset,
  bytes,
});
const exited = (end: number): GuestFrame => exitOf(id, end);
const piece = Buffer.alloc(GUEST_LIMITS.payloadMax, 1);

const breaches: Record<string, readonly GuestFrame[]> = {
  'a second welcome': [welcome(randomUUID())],
  'an answer that nobody asked for': [{ type: 'done', request: 12_345 }],
  'output of an unknown process': [{ ...output(0, piece), id: randomUUID() } as GuestFrame],
  'output out of turn': [output(1, piece)],
  'output twice': [output(0, piece), output(0, piece)],
  'output of no stream': [output(0, piece, 3)],
  'empty output': [output(0, Buffer.alloc(0))],
  'output beyond the window': Array.from({ length: 5 }, (_, index) =>
    output(index * piece.length, piece),
  ),
  'output after its end': [exited(10), output(0, piece)],
  'an end before its output': [output(0, piece), exited(10)],
  'two ends': [exited(0), exited(0)],
  'the end of an unknown process': [{ ...exited(0), id: randomUUID() } as GuestFrame],
  'two ends of the guest': [
    { type: 'poweringOff', request: 0, isRequested: 0 },
    { type: 'poweringOff', request: 0, isRequested: 0 },
  ],
  'input taken that was not sent': [{ type: 'taken', request: 0, id, offset: 1 }],
};

for (const [what, frames] of Object.entries(breaches)) {
  test(`ends the channel: ${what}`, async (t) => {
    const guest = new PlayedGuest(orderly);
    const { channel } = await GuestChannel.open(guest.theirs);
    await channel.start(processSpec('true', { id }));
    await endsWith(t, channel, () => guest.say(...frames));
  });
}

for (const [what, answer] of Object.entries({
  'an answer to another question': { type: 'started', pid: 1 },
  'a failure that there is not': { type: 'failed', code: 999, errno: 0, step: '' },
  'an error number that there is not': { type: 'failed', code: 8, errno: 65_535, step: '' },
} as const)) {
  test(`ends the channel: ${what}`, async (t) => {
    const guest = new PlayedGuest((frame) =>
      frame.type === 'thaw' ? [{ ...answer, request: frame.request }] : orderly(frame),
    );
    const { channel } = await GuestChannel.open(guest.theirs);
    await endsWith(t, channel, () => void channel.thaw().catch(() => undefined));
  });
}

test('garbage after the welcome ends the channel', async (t) => {
  const property = fc.asyncProperty(
    fc.uint8Array({ minLength: 1, maxLength: 200 }),
    async (junk) => {
      const guest = new PlayedGuest(orderly);
      const { channel } = await GuestChannel.open(guest.theirs);
      await endsWith(t, channel, () => guest.write(Buffer.from([...junk, 0])));
    },
  );
  await fc.assert(property, { numRuns: 100 });
});

test('a frame without an end is not waited for', async (t) => {
  const guest = new PlayedGuest(orderly);
  const { channel } = await GuestChannel.open(guest.theirs);
  await endsWith(t, channel, () => guest.write(Buffer.alloc(GUEST_LIMITS.frameMax * 2, 1)));
});

test('whatever came before the welcome is ignored, however it is cut', async (t) => {
  const stale = fc.array(
    fc.oneof(
      fc.uint8Array({ maxLength: 100 }).map((bytes) => Buffer.from(bytes)),
      fc.constantFrom(welcome(randomUUID()), exited(5), output(0, piece)).map(encodeGuestFrame),
    ),
    { maxLength: 6 },
  );
  const property = fc.asyncProperty(stale, fc.nat(100_000), async (parts, cut) => {
    const before = Buffer.concat(parts);
    const guest = new PlayedGuest((frame) => {
      if (frame.type === 'hello') guest.write(Buffer.from([0]));
      return orderly(frame);
    });
    guest.write(before.subarray(cut % (before.length + 1)));
    const { channel } = await GuestChannel.open(guest.theirs);
    await channel.ping();
    channel.close();
  });
  await fc.assert(property, { numRuns: 60 });
  t.pass();
});

test('a guest that floods instead of a welcome is given up', async (t) => {
  const guest = new PlayedGuest(() => []);
  const opening = GuestChannel.open(guest.theirs);
  const flood = Buffer.alloc(MiB, 1);
  for (let index = 0; index < 10; index += 1) guest.write(flood);
  await t.throwsAsync(opening, { name: 'GuestProtocolError' });
});

test('a guest that says nothing is given up in time', async (t) => {
  const guest = new PlayedGuest(() => []);
  await t.throwsAsync(GuestChannel.open(guest.theirs, { timeoutMs: 50 }), {
    name: 'GuestUnavailableError',
  });
});

test('a guest of another version is refused', async (t) => {
  const guest = new PlayedGuest((frame) =>
    frame.type === 'hello'
      ? [{ ...welcome(frame.epoch), version: GUEST_PROTOCOL_VERSION + 1 } as GuestFrame]
      : [],
  );
  await t.throwsAsync(GuestChannel.open(guest.theirs), { message: /version/u });
});

test('lists that do not end, repeat or contradict themselves are refused', async (t) => {
  const record = Buffer.alloc(68);
  const impossible = Buffer.alloc(68);
  impossible.writeBigUInt64LE(9n, 28); // The oldest byte comes after the last.
  for (const [next, records] of [
    [1, Buffer.concat([record, record])],
    [0, impossible],
    [0, Buffer.alloc(67)],
    [5000, record],
  ] as const) {
    const guest = new PlayedGuest((frame) =>
      frame.type === 'list'
        ? [{ type: 'records', request: frame.request, next, records }]
        : orderly(frame),
    );
    await t.throwsAsync(GuestChannel.open(guest.theirs));
  }
});

test('for a guest that reads nothing no more than one long command waits', async (t) => {
  const guest = new PlayedGuest(orderly);
  const { channel } = await GuestChannel.open(guest.theirs);
  guest.stopReading();
  const waiting = Array.from({ length: 40 }, () =>
    channel
      .start(processSpec('#'.padEnd(GUEST_LIMITS.commandMax, 'x')))
      .then(() => 'started')
      .catch((error: unknown) => (error as Error).name),
  );
  for (let turn = 0; turn < 50; turn += 1) await setImmediate();
  t.true(guest.theirs.writableLength <= 2 * GUEST_LIMITS.commandMax);
  channel.close();
  t.deepEqual(new Set(await Promise.all(waiting)), new Set(['GuestUnavailableError']));
});
