/** The interface that the checksums here share with `node:crypto`'s hashes. */
export interface Digest {
  update(chunk: Buffer): unknown;
  /** The value in big-endian order, as headers carry it. */
  digest(): Buffer;
}

/** The parameters of a reflected CRC whose start value and final mask are all ones. */
interface CrcKind {
  readonly bits: 32 | 64;
  /** The reflected polynomial in two halves; a CRC of 32 bits has only the low one. */
  readonly polynomial: readonly [high: number, low: number];
  readonly high: Uint32Array;
  readonly low: Uint32Array;
}

const SLICES = 8;

/**
 * Tables for slicing by eight (Kounavis and Berry 2005): entry `slice * 256 + byte` is what `byte`
 * contributes when `slice` more bytes follow it.
 */
function makeKind(bits: 32 | 64, polynomial: readonly [number, number]): CrcKind {
  const high = new Uint32Array(SLICES * 256);
  const low = new Uint32Array(SLICES * 256);
  for (let byte = 0; byte < 256; byte += 1) {
    let upper = 0;
    let lower = byte;
    for (let bit = 0; bit < 8; bit += 1) {
      const isOdd = (lower & 1) === 1;
      lower = (lower >>> 1) | (upper << 31);
      upper >>>= 1;
      if (isOdd) {
        upper ^= polynomial[0];
        lower ^= polynomial[1];
      }
    }
    high[byte] = upper;
    low[byte] = lower;
  }
  for (let index = 256; index < SLICES * 256; index += 1) {
    const upper = high[index - 256] ?? 0;
    const lower = low[index - 256] ?? 0;
    const next = lower & 0xff;
    low[index] = ((lower >>> 8) | (upper << 24)) ^ (low[next] ?? 0);
    high[index] = (upper >>> 8) ^ (high[next] ?? 0);
  }
  return { bits, polynomial, high, low };
}

/** CRC-32C (RFC 3720 §12.1). */
export const CRC32C = makeKind(32, [0, 0x82f63b78]);

/** CRC-64/NVME (NVM Express NVM Command Set 1.0, §5.2.1.3.4). */
export const CRC64NVME = makeKind(64, [0x9a6c9329, 0xac4bc9b5]);

/** Computes a CRC that Node does not provide. */
export class Crc implements Digest {
  readonly #kind: CrcKind;
  #high: number;
  #low = -1;

  constructor(kind: CrcKind) {
    this.#kind = kind;
    this.#high = kind.bits === 64 ? -1 : 0;
  }

  // oxlint-disable-next-line max-lines-per-function -- unrolled, for its speed
  update(chunk: Buffer): void {
    const { high, low } = this.#kind;
    let upper = this.#high;
    let lower = this.#low;
    let offset = 0;
    for (const end = chunk.length - 7; offset < end; offset += 8) {
      const a = lower ^ readWord(chunk, offset);
      const b = upper ^ readWord(chunk, offset + 4);
      const a0 = 1792 | (a & 255);
      const a1 = 1536 | ((a >>> 8) & 255);
      const a2 = 1280 | ((a >>> 16) & 255);
      const a3 = 1024 | (a >>> 24);
      const b0 = 768 | (b & 255);
      const b1 = 512 | ((b >>> 8) & 255);
      const b2 = 256 | ((b >>> 16) & 255);
      const b3 = b >>> 24;
      lower = low[a0]! ^ low[a1]! ^ low[a2]! ^ low[a3]! ^ low[b0]! ^ low[b1]! ^ low[b2]! ^ low[b3]!;
      upper =
        high[a0]! ^
        high[a1]! ^
        high[a2]! ^
        high[a3]! ^
        high[b0]! ^
        high[b1]! ^
        high[b2]! ^
        high[b3]!;
    }
    for (; offset < chunk.length; offset += 1) {
      const index = (lower ^ chunk[offset]!) & 255;
      lower = ((lower >>> 8) | (upper << 24)) ^ low[index]!;
      upper = (upper >>> 8) ^ high[index]!;
    }
    this.#high = upper;
    this.#low = lower;
  }

  digest(): Buffer {
    const value = Buffer.alloc(8);
    value.writeUInt32BE(~this.#high >>> 0, 0);
    value.writeUInt32BE(~this.#low >>> 0, 4);
    return value.subarray(8 - this.#kind.bits / 8);
  }
}

const readWord = (chunk: Buffer, at: number): number =>
  chunk[at]! | (chunk[at + 1]! << 8) | (chunk[at + 2]! << 16) | (chunk[at + 3]! << 24);
