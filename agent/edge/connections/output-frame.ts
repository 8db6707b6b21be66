import type { OutputPiece } from '../../sandboxes/processes/attachment.ts';

const HEAD_BYTES = 9;

/**
 * A binary frame of output: u8 stream (1 stdout, 2 stderr), u64 big-endian offset among the bytes
 * of both streams, the bytes (docs/process-connections.md).
 */
export function encodeOutput({ stream, offset, bytes }: OutputPiece): Buffer {
  const frame = Buffer.allocUnsafe(HEAD_BYTES + bytes.length);
  frame.writeUInt8(stream);
  frame.writeBigUInt64BE(BigInt(offset), 1);
  bytes.copy(frame, HEAD_BYTES);
  return frame;
}
