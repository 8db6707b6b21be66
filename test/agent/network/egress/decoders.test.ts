import { once } from 'node:events';
import { buffer } from 'node:stream/consumers';
import { constants, zstdCompressSync } from 'node:zlib';
import test from 'ava';
import { newDecoder } from '../../../../agent/network/egress/decoders.ts';
import { MiB } from '../../../../shared/units.ts';

/** Decodes a frame of zstd with a window of so many bytes, as a power of two. */
async function decode(windowLog: number): Promise<number> {
  const params = { [constants.ZSTD_c_windowLog]: windowLog };
  const decoder = newDecoder('zstd');
  if (decoder === undefined) throw new Error('there is no decoder');
  decoder.end(zstdCompressSync(Buffer.alloc(16 * MiB), { params }));
  return (await buffer(decoder)).length;
}

test.serial('a frame that takes more memory than HTTP allows is not decoded', async (t) => {
  t.is(await decode(23), 16 * MiB);
  await t.throwsAsync(decode(24), { message: /memory|parameter|too large/iu });
});

test.serial('only some decoders with large windows are open at the same time', async (t) => {
  const open = Array.from({ length: 16 }, () => newDecoder('br'));
  t.false(open.includes(undefined));
  t.is(newDecoder('br'), undefined);
  t.is(newDecoder('zstd'), undefined);
  newDecoder('gzip')?.destroy();
  const closed = open.map(async (decoder) => {
    if (decoder !== undefined) await once(decoder.destroy(), 'close');
  });
  await Promise.all(closed);
  const next = newDecoder('br');
  t.truthy(next);
  next?.destroy();
});
