/* The guest agent survives any bytes from the host's side, and understands the next hello. */
import { randomUUID } from 'node:crypto';
import { crc32 } from 'node:zlib';
import test from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import { GuestChannel } from '../../../agent/machines/guest-link/guest-channel.ts';
import { stuff } from '../../../agent/machines/guest-link/byte-stuffing.ts';
import {
  encodeHostFrame,
  GUEST_LIMITS,
  GUEST_PROTOCOL_VERSION,
  hostFrames,
  type HostFrame,
} from '../../../agent/machines/guest-link/guest-protocol.ts';
import {
  collect,
  guestBuilds,
  GuestPort,
  guestSettings,
  processSpec,
  TestGuest,
} from '../../helpers/guest.ts';
import { isFull } from '../../helpers/full.ts';

const known = randomUUID();

const values = {
  u8: fc.integer({ min: 0, max: 0xff }),
  u16: fc.integer({ min: 0, max: 0xffff }),
  u32: fc.oneof(fc.nat(20), fc.integer({ min: 0, max: 0xffff_ffff })),
  u64: fc.oneof(fc.nat(20), fc.integer({ min: 0, max: Number.MAX_SAFE_INTEGER })),
  id: fc.constantFrom(known, randomUUID()),
  ip4: fc.ipV4(),
  text8: fc.constantFrom('', 'lo', 'nosuch', 'x'.repeat(255)),
  text16: fc.constantFrom('', '/', 'x'.repeat(5000)),
  bytes16: fc.uint8Array({ maxLength: 600 }).map((bytes) => Buffer.from(bytes)),
  rest: fc.uint8Array({ maxLength: 300 }).map((bytes) => Buffer.from(bytes)),
};

/** All but those that end it. */
const anyFrame = fc.oneof(
  ...Object.entries(hostFrames)
    .filter(([type]) => type !== 'shutdown' && type !== 'freeze')
    .map(([type, { fields }]) =>
      fc.record({
        type: fc.constant(type),
        request: values.u32,
        ...Object.fromEntries(Object.entries(fields).map(([name, kind]) => [name, values[kind]])),
      }),
    ),
) as unknown as fc.Arbitrary<HostFrame>;

/** A frame with a right checksum, of any kind and content. */
const sealed = (content: Uint8Array): Buffer => {
  const checksum = Buffer.alloc(4);
  checksum.writeUInt32LE(crc32(content));
  return stuff(Buffer.concat([content, checksum]));
};

const junk = fc.oneof(
  fc.uint8Array({ maxLength: 500 }).map((bytes) => Buffer.from(bytes)),
  anyFrame.map(encodeHostFrame),
  fc
    .uint8Array({ minLength: 1, maxLength: 100 })
    .filter(([kind]) => kind !== hostFrames.shutdown.kind && kind !== hostFrames.freeze.kind)
    .map(sealed),
  fc
    .tuple(fc.constantFrom(...Object.values(hostFrames)), fc.uint8Array({ maxLength: 80 }))
    .filter(([{ kind }]) => kind < hostFrames.freeze.kind)
    .map(([{ kind }, rest]) => sealed(Buffer.from([kind, 1, 0, 0, 0, ...rest]))),
  fc.constantFrom(
    Buffer.alloc(GUEST_LIMITS.frameMax * 2, 1),
    Buffer.alloc(100_000),
    Buffer.from([1, 1, 1, 0]),
  ),
);

const hello = (): Buffer =>
  encodeHostFrame({
    type: 'hello',
    request: 0,
    version: GUEST_PROTOCOL_VERSION,
    epoch: randomUUID(),
  });

for (const build of guestBuilds) {
  test(`${build.name} survives whatever comes`, async (t) => {
    await using guest = await TestGuest.start({ build });
    const port = new GuestPort(guest.socket);
    const first = await GuestChannel.open(port.connect());
    await first.channel.configure(guestSettings());
    await first.channel.start(processSpec('cat', { id: known, stdin: true }));
    first.channel.close();
    const property = fc.asyncProperty(fc.array(junk, { maxLength: 20 }), async (parts) => {
      for (const part of [Buffer.alloc(1), hello(), ...parts]) guest.socket.write(part);
      const { channel } = await GuestChannel.open(port.connect());
      await channel.ping();
      channel.close();
    });
    await fc.assert(property, { numRuns: isFull ? 500 : 150 });
    const { channel } = await GuestChannel.open(port.connect());
    await channel.configure(guestSettings());
    t.is((await collect(channel, processSpec('echo works'))).text, 'works\n');
    channel.close();
  });
}
