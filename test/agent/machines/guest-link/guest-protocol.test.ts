import { randomUUID } from 'node:crypto';
import test from 'ava';
import * as fc from '../../../helpers/fast-check.ts';
import type { FieldTypes } from '../../../../agent/system/binary-record.ts';
import { unstuff } from '../../../../agent/machines/guest-link/byte-stuffing.ts';
import {
  decodeGuestFrame,
  decodeHostFrame,
  decodeProcessRecords,
  encodeGuestFrame,
  encodeHostFrame,
  GUEST_LIMITS,
  guestFrames,
  hostFrames,
  processRecordBytes,
  stuffedFrameMax,
  type GuestFrame,
  type HostFrame,
} from '../../../../agent/machines/guest-link/guest-protocol.ts';

const text = (maxLength: number): fc.Arbitrary<string> =>
  fc
    .string({ unit: 'grapheme', maxLength: maxLength / 16 })
    .filter((value) => !value.includes('\0') && Buffer.byteLength(value) <= maxLength);
const bytes = (maxLength: number): fc.Arbitrary<Buffer> =>
  fc.uint8Array({ maxLength }).map((array) => Buffer.from(array));

const values = {
  u8: fc.integer({ min: 0, max: 0xff }),
  u16: fc.integer({ min: 0, max: 0xffff }),
  u32: fc.integer({ min: 0, max: 0xffff_ffff }),
  u64: fc.integer({ min: 0, max: Number.MAX_SAFE_INTEGER }),
  id: fc.constant(null).map(() => randomUUID()),
  ip4: fc.ipV4(),
  text8: text(255),
  text16: text(2000),
  bytes16: bytes(600),
  rest: bytes(2000),
};

const anyFrame = <T>(frames: Record<string, { fields: FieldTypes }>): fc.Arbitrary<T> =>
  fc.oneof(
    ...Object.entries(frames).map(([type, { fields }]) =>
      fc.record({
        type: fc.constant(type),
        request: values.u32,
        ...Object.fromEntries(Object.entries(fields).map(([name, kind]) => [name, values[kind]])),
      }),
    ),
  ) as unknown as fc.Arbitrary<T>;

const inner = (encoded: Buffer): Buffer => encoded.subarray(0, -1);

test('every frame of the host comes out as it went in', (t) => {
  fc.assert(
    fc.property(anyFrame<HostFrame>(hostFrames), (frame) => {
      t.deepEqual(decodeHostFrame(inner(encodeHostFrame(frame))), frame);
    }),
    { numRuns: 300 },
  );
});

test('every frame of the guest comes out as it went in', (t) => {
  fc.assert(
    fc.property(anyFrame<GuestFrame>(guestFrames), (frame) => {
      t.deepEqual(decodeGuestFrame(inner(encodeGuestFrame(frame))), frame);
    }),
    { numRuns: 300 },
  );
});

test('a frame that lost or changed any byte is refused', (t) => {
  const frame = { type: 'output', request: 0, id: randomUUID(), stream: 1, offset: 7 } as const;
  const encoded = inner(encodeGuestFrame({ ...frame, bytes: Buffer.from('a\0b\0\0c') }));
  for (let at = 0; at < encoded.length; at += 1) {
    t.throws(() => decodeGuestFrame(encoded.subarray(0, at)));
    t.throws(() => decodeGuestFrame(encoded.subarray(at + 1)));
    const changed = Buffer.from(encoded);
    changed[at] = (encoded[at] ?? 0) ^ 0x10;
    t.throws(() => decodeGuestFrame(changed));
  }
});

test('random bytes are no frame, and only errors come of them', (t) => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 300 }), (junk) => {
      t.throws(() => decodeGuestFrame(Buffer.from(junk)), { instanceOf: Error });
      t.throws(() => decodeHostFrame(Buffer.from(junk)), { instanceOf: Error });
    }),
    { numRuns: 500 },
  );
});

test('kinds of the other side, and kinds that there are not, are refused', (t) => {
  const ping = inner(encodeHostFrame({ type: 'ping', request: 1 }));
  t.throws(() => decodeGuestFrame(ping), { message: /unknown kind 2/u });
  const done = inner(encodeGuestFrame({ type: 'done', request: 1 }));
  t.throws(() => decodeHostFrame(done), { message: /unknown kind 65/u });
  t.deepEqual(unstuff(ping).length, 9);
});

const stdin = (length: number): HostFrame => ({
  type: 'stdin',
  request: 0,
  id: randomUUID(),
  offset: 0,
  bytes: Buffer.alloc(length, 1),
});

test('a payload may have 64 KiB and no frame more than the bound', (t) => {
  const encoded = inner(encodeHostFrame(stdin(GUEST_LIMITS.payloadMax)));
  t.true(encoded.length <= stuffedFrameMax);
  t.throws(() => encodeHostFrame(stdin(GUEST_LIMITS.frameMax)), { message: /too long/u });
  t.throws(() => decodeGuestFrame(Buffer.alloc(stuffedFrameMax + 1, 1)), { message: /too long/u });
});

test('values that do not fit their fields are refused', (t) => {
  const id = randomUUID();
  const resize = { type: 'resize', request: 1, id, columns: 80, rows: 24 } as const;
  for (const wrong of [
    { columns: -1 },
    { columns: 65_536 },
    { rows: 1.5 },
    { id: 'x' },
    { id: `${id}0` },
  ]) {
    t.throws(() => encodeHostFrame({ ...resize, ...wrong }), { message: /does not fit/u });
  }
  const ack = { type: 'ack', request: 0, id } as const;
  t.throws(() => encodeHostFrame({ ...ack, offset: 2 ** 53 }), { message: /does not fit/u });
});

test('offsets beyond what JavaScript counts exactly are refused', (t) => {
  t.throws(() => decodeProcessRecords(Buffer.alloc(processRecordBytes, 0xff)));
  t.throws(() => decodeProcessRecords(Buffer.alloc(processRecordBytes + 1)));
  const tooMany = (GUEST_LIMITS.recordsPerPageMax + 1) * processRecordBytes;
  t.throws(() => decodeProcessRecords(Buffer.alloc(tooMany)));
  t.is(decodeProcessRecords(Buffer.alloc(2 * processRecordBytes)).length, 2);
});
