import type { Writable } from 'node:stream';
import { EDGE_LIMITS } from '../../limits.ts';
import { readBytes } from '../../../disks/disk-calls.ts';
import type { BodyPart } from './file-response.ts';

/** A file that is open for reading. */
export interface BodySource {
  readonly fd: number;
}

/** Settles when the bytes have been written: their buffer may then be reused. */
function write(to: Writable, bytes: Buffer): Promise<void> {
  return new Promise((resolve, reject) => {
    const onClose = (): void => reject(new Error('the connection ended'));
    to.once('close', onClose);
    to.write(bytes, (error) => {
      to.off('close', onClose);
      if (error === null || error === undefined) resolve();
      else reject(error);
    });
  });
}

async function fill(fd: number, buffer: Buffer, position: number): Promise<void> {
  let filled = 0;
  while (filled < buffer.length) {
    const left = buffer.length - filled;
    const { bytesRead } = await readBytes(fd, buffer, filled, left, position + filled);
    // The length was announced: a short body must not look complete.
    if (bytesRead === 0) throw new Error('the file was truncated while it was sent');
    filled += bytesRead;
  }
}

function join(content: Buffer, body: readonly BodyPart[]): Buffer {
  const parts = body.map((part) =>
    typeof part === 'string'
      ? Buffer.from(part, 'latin1')
      : content.subarray(part.start, part.end + 1),
  );
  const [first, ...others] = parts;
  return first !== undefined && others.length === 0 ? first : Buffer.concat(parts);
}

/**
 * Writes the parts of a body whose file was read already, and ends the stream with them.
 * @returns the number of bytes, once they were written
 * @throws Error when the connection ends before
 */
export function endWithBody(
  content: Buffer,
  body: readonly BodyPart[],
  to: Writable,
): Promise<number> {
  const bytes = join(content, body);
  return new Promise((resolve, reject) => {
    const onClose = (): void => reject(new Error('the connection ended'));
    if (to.destroyed) return onClose(); // The event comes only once.
    to.once('close', onClose);
    to.end(bytes, () => {
      to.off('close', onClose); // Every answer's connection ends; the error takes long to make.
      resolve(bytes.length);
    });
  });
}

/**
 * Writes the parts of a body with two alternating buffers: one is filled from the file while the
 * other is sent. Does not end the stream.
 * @param to must be done with the bytes of a write when it calls back, as a socket is
 * @throws Error when the file cannot be read, ends early, or the connection ends
 */
export async function sendBody(
  { fd }: BodySource,
  body: readonly BodyPart[],
  to: Writable,
  onSent: (bytes: number) => void,
  bufferBytes: number = EDGE_LIMITS.downloadBufferBytes,
): Promise<void> {
  const longest = Math.max(
    0,
    ...body.map((part) => (typeof part === 'string' ? 0 : part.end - part.start + 1)),
  );
  const size = Math.min(bufferBytes, longest);
  const first = Buffer.allocUnsafeSlow(size);
  // A single buffer is enough for a body that fits into it.
  const isSmall = body.length === 1 && longest === size;
  const buffers = [first, isSmall ? first : Buffer.allocUnsafeSlow(size)] as const;
  let turn: 0 | 1 = 0;
  let writing = Promise.resolve();
  const enqueue = async (bytes: Buffer): Promise<void> => {
    await writing;
    writing = write(to, bytes).then(() => onSent(bytes.length));
    writing.catch(() => undefined); // The next await throws it.
  };
  for (const part of body) {
    if (typeof part === 'string') {
      await enqueue(Buffer.from(part, 'latin1'));
      continue;
    }
    for (let at = part.start; at <= part.end; at += size) {
      const chunk = buffers[turn].subarray(0, Math.min(size, part.end - at + 1));
      await fill(fd, chunk, at);
      await enqueue(chunk);
      turn = turn === 0 ? 1 : 0;
    }
  }
  await writing;
}
