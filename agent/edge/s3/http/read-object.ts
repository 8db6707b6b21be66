import { EDGE_LIMITS } from '../../limits.ts';
import { readBytes } from '../../../disks/disk-calls.ts';
import type { ByteRange } from '../protocol/byte-ranges.ts';
import { S3Error } from '../protocol/errors.ts';

/**
 * Reads a range of an open file in chunks. Both ends are included; an end before the start means no
 * bytes.
 * @throws S3Error OperationAborted when the file was truncated meanwhile
 */
export async function* readObject(
  { fd }: { readonly fd: number },
  { start, end }: ByteRange,
): AsyncGenerator<Buffer> {
  for (let at = start; at <= end;) {
    const length = Math.min(EDGE_LIMITS.downloadBufferBytes, end - at + 1);
    const { bytesRead, buffer } = await readBytes(
      fd,
      Buffer.allocUnsafeSlow(length),
      0,
      length,
      at,
    );
    if (bytesRead === 0)
      throw new S3Error('OperationAborted', 'The source was changed while it was read.');
    yield buffer.subarray(0, bytesRead);
    at += bytesRead;
  }
}
