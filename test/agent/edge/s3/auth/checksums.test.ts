import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import test from 'ava';
import * as fc from '../../../../helpers/fast-check.ts';
import { BodyChecks, readTrailerNames } from '../../../../../agent/edge/s3/auth/checksums.ts';
import {
  Checksum,
  CHECKSUM_ALGORITHMS,
  CHECKSUM_BYTES,
  joinCrcs,
} from '../../../../../agent/edge/s3/protocol/checksum.ts';
import { S3Error, type S3ErrorCode } from '../../../../../agent/edge/s3/protocol/errors.ts';
import type { Payload } from '../../../../../agent/edge/s3/auth/sigv4.ts';

const UNSIGNED: Payload = { kind: 'unsigned' };
const CHECK = Buffer.from('123456789');

/** The values of `CHECK`: of CRCs from their published catalogues. */
const values: Record<string, string> = {
  'content-md5': createHash('md5').update(CHECK).digest('base64'),
  'x-amz-checksum-crc32': Buffer.from('cbf43926', 'hex').toString('base64'),
  'x-amz-checksum-crc32c': Buffer.from('e3069283', 'hex').toString('base64'),
  'x-amz-checksum-crc64nvme': Buffer.from('ae8b14860a799888', 'hex').toString('base64'),
  'x-amz-checksum-sha1': createHash('sha1').update(CHECK).digest('base64'),
  'x-amz-checksum-sha256': createHash('sha256').update(CHECK).digest('base64'),
};

async function check(
  body: Iterable<Buffer>,
  headers: readonly string[],
  payload = UNSIGNED,
  trailers = new Map<string, string>(),
): Promise<S3ErrorCode | 'ok'> {
  try {
    const checks = BodyChecks.read(headers, payload);
    const md5 = createHash('md5');
    for await (const chunk of Readable.from(body) as AsyncIterable<Buffer>) {
      checks.update(chunk);
      checks.checksum?.addNow(chunk);
      md5.update(chunk);
    }
    checks.verifyPayload();
    checks.verify({ md5: md5.digest(), checksum: checks.checksum?.digest() }, trailers);
    return 'ok';
  } catch (error) {
    if (error instanceof S3Error) return error.code;
    throw error;
  }
}

for (const [header, value] of Object.entries(values)) {
  test(`${header} is compared with the body, however it comes`, async (t) => {
    const bytes = [...CHECK].map((byte) => Buffer.from([byte]));
    t.is(await check([CHECK], [header.toUpperCase(), value]), 'ok');
    t.is(await check(bytes, [header, value]), 'ok');
    t.is(await check([CHECK, CHECK], [header, value]), 'BadDigest');
    t.is(await check([], [header, value]), 'BadDigest');
  });

  test(`${header} must be base64 of the right length`, async (t) => {
    for (const wrong of [
      '',
      '?',
      value.slice(4),
      `${value}AAAA`,
      value.replace('=', ''),
      ` ${value}`,
    ]) {
      if (wrong === value) continue;
      t.is(await check([CHECK], [header, wrong]), 'InvalidDigest', wrong);
    }
    t.is(await check([CHECK], [header, value, header, value]), 'InvalidDigest');
  });
}

test('a trailer brings the value', async (t) => {
  const [name, value] = ['x-amz-checksum-crc64nvme', 'rosUhgp5mIg='];
  const headers = ['X-Amz-Trailer', 'X-Amz-Checksum-CRC64NVME'];
  t.deepEqual(readTrailerNames(headers), [name]);
  t.is(await check([CHECK], headers, UNSIGNED, new Map([[name, value]])), 'ok');
  t.is(await check([CHECK], headers, UNSIGNED, new Map([[name, 'AAAAAAAAAAA=']])), 'BadDigest');
  t.is(await check([CHECK], headers, UNSIGNED, new Map([[name, 'no']])), 'InvalidDigest');
  t.is(await check([CHECK], headers), 'InvalidDigest');
});

test('the declared payload is compared with the body', async (t) => {
  const sha256 = createHash('sha256').update(CHECK).digest('hex');
  t.is(await check([CHECK], [], { kind: 'sha256', sha256 }), 'ok');
  t.is(await check([], [], { kind: 'sha256', sha256 }), 'XAmzContentSHA256Mismatch');
});

test('one checksum of the new kind may be given, and Content-MD5 besides it', async (t) => {
  const { 'content-md5': md5 = '', 'x-amz-checksum-crc32': crc32 = '' } = values;
  const both = ['content-md5', md5, 'x-amz-checksum-crc32', crc32];
  t.is(await check([CHECK], both), 'ok');
  t.is(await check([CHECK], [...both, 'x-amz-checksum-crc32c', '4waSgw==']), 'InvalidRequest');
  t.is(await check([CHECK], [...both, 'x-amz-trailer', 'x-amz-checksum-sha1']), 'InvalidRequest');
});

test('checksums that are not known are refused, not passed over', async (t) => {
  t.is(await check([CHECK], ['x-amz-checksum-xxhash64', 'AAAAAAAAAAA=']), 'NotImplemented');
  t.is(await check([CHECK], ['x-amz-trailer', 'x-amz-meta-a']), 'NotImplemented');
});

test('headers about checksums are no checksums', async (t) => {
  const headers = ['x-amz-checksum-algorithm', 'CRC32', 'x-amz-checksum-mode', 'ENABLED'];
  t.is(await check([CHECK], [...headers, 'x-amz-checksum-type', 'FULL_OBJECT']), 'ok');
});

/** Bit by bit, from the definition. */
function slowCrc(bytes: Uint8Array, polynomial: bigint, bits: bigint): bigint {
  const mask = (1n << bits) - 1n;
  let crc = mask;
  for (const byte of bytes) {
    crc ^= BigInt(byte);
    for (let bit = 0; bit < 8; bit += 1) crc = (crc >> 1n) ^ ((crc & 1n) === 1n ? polynomial : 0n);
  }
  return crc ^ mask;
}

const CRCS = [
  ['crc32', 0xedb88320n],
  ['crc32c', 0x82f63b78n],
  ['crc64nvme', 0x9a6c9329ac4bc9b5n],
] as const;

test('CRCs agree with their definition, however the bytes are split, and those of parts join', async (t) => {
  const bytes = fc.uint8Array({ maxLength: 200 });
  const property = fc.asyncProperty(fc.array(bytes, { maxLength: 5 }), async (pieces) => {
    for (const [algorithm, polynomial] of CRCS) {
      const size = CHECKSUM_BYTES[algorithm];
      const whole = new Checksum(algorithm);
      const parts = [];
      for (const piece of pieces) {
        whole.addNow(Buffer.from(piece));
        const part = new Checksum(algorithm);
        await part.add([Buffer.from(piece)]);
        parts.push({ sizeBytes: piece.length, value: part.digest() });
      }
      const expected = slowCrc(Buffer.concat(pieces), polynomial, BigInt(size * 8));
      const hex = expected.toString(16).padStart(size * 2, '0');
      t.is(whole.digest().toString('hex'), hex);
      t.is((await joinCrcs(algorithm, parts)).toString('hex'), hex);
    }
  });
  await fc.assert(property);
});

test('many bytes are added on a thread, with the same result', async (t) => {
  const bytes = Buffer.alloc(300_000, 'many bytes ');
  for (const algorithm of CHECKSUM_ALGORITHMS) {
    const [now, later] = [new Checksum(algorithm), new Checksum(algorithm)];
    now.addNow(bytes);
    await later.add([bytes.subarray(0, 100_001), bytes.subarray(100_001)]);
    t.deepEqual(later.digest(), now.digest(), algorithm);
  }
});

test('garbage in the headers gives no error of another kind', async (t) => {
  const name = fc.constantFrom(...Object.keys(values), 'x-amz-trailer', 'x-amz-checksum-', 'host');
  const value = fc.oneof(fc.constantFrom(...Object.values(values)), fc.string());
  const headers = fc.array(fc.tuple(name, value)).map((pairs) => pairs.flat());
  await fc.assert(
    fc.asyncProperty(headers, async (each) => {
      await check([CHECK], each);
    }),
  );
  t.pass();
});
