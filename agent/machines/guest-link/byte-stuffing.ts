/*
 * Consistent overhead byte stuffing (Cheshire and Baker, 1999): bytes without a zero among them,
 * one more for each 254. A zero then ends a frame and occurs nowhere else, so a reader that begins
 * anywhere in a stream is in step after the next zero, whatever the frames hold.
 */
const RUN_MAX = 254;

/** The longest that `length` bytes can become by stuffing, without the zero that ends the frame. */
export const stuffedLengthMax = (length: number): number =>
  length + Math.floor(length / RUN_MAX) + 1;

/** Stuffs a frame and appends the zero that ends it. */
export function stuff(bytes: Buffer): Buffer {
  const out = Buffer.allocUnsafe(stuffedLengthMax(bytes.length) + 1);
  let written = 0;
  let from = 0;
  for (;;) {
    const limit = Math.min(from + RUN_MAX, bytes.length);
    let end = from;
    while (end < limit && bytes[end] !== 0) end += 1;
    out[written] = end - from + 1;
    bytes.copy(out, written + 1, from, end);
    written += end - from + 1;
    if (end === bytes.length) break;
    from = end - from === RUN_MAX ? end : end + 1; // A full run stands for no zero.
  }
  out[written] = 0;
  return out.subarray(0, written + 1);
}

/**
 * Restores what `stuff` was given.
 * @throws Error when a run leads beyond the end
 */
export function unstuff(stuffed: Buffer): Buffer {
  const out = Buffer.allocUnsafe(stuffed.length);
  let written = 0;
  let at = 0;
  while (at < stuffed.length) {
    const code = stuffed[at] ?? 0;
    const end = at + code;
    if (code === 0 || end > stuffed.length) throw new Error('bytes are stuffed wrongly');
    for (at += 1; at < end; at += 1) out[written++] = stuffed[at] ?? 0;
    if (code <= RUN_MAX && end < stuffed.length) out[written++] = 0;
  }
  return out.subarray(0, written);
}
