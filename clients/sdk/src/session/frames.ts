/* The messages of process connections, version 2 (docs/process-connections.md). */

/** How a process ended. */
export interface ProcessExit {
  /**
   * `completed`: with exit code 0. `failed`: with another one, or it was lost. `cancelled`: killed,
   * or ended with its sandbox. `timed_out`: by its time limit.
   */
  readonly status: 'completed' | 'failed' | 'cancelled' | 'timed_out';
  /** 128 + n for signal n; undefined when it was cancelled, timed out or lost. */
  readonly exitCode: number | undefined;
  /** In words, unless it just exited. */
  readonly reason: string | undefined;
}

/** A piece of what a process wrote. */
export interface OutputChunk {
  readonly stream: 'stdout' | 'stderr';
  /** The offset of its first byte among the bytes of both streams. */
  readonly offset: number;
  readonly bytes: Uint8Array;
}

/** @internal A text frame of the server. Types that are not known here are to be ignored. */
export type ServerEvent =
  | { readonly type: 'started' | 'attached'; readonly process_id: string }
  | { readonly type: 'input'; readonly offset: number; readonly end: number }
  | { readonly type: 'alive' | 'killed' | 'resized' }
  | { readonly type: 'error'; readonly error: string; readonly message: string }
  | {
      readonly type: 'exit';
      readonly status: ProcessExit['status'];
      readonly cursor: number;
      readonly exit_code?: number | null;
      readonly exit_reason?: string | null;
    };

const OUTPUT_HEAD_BYTES = 9;
const INPUT_HEAD_BYTES = 8;
const STDOUT = 1;

/** @internal */
export const parseEvent = (text: string): ServerEvent => JSON.parse(text) as ServerEvent;

/** @internal */
export function decodeOutput(frame: ArrayBuffer): OutputChunk {
  const view = new DataView(frame);
  return {
    stream: view.getUint8(0) === STDOUT ? 'stdout' : 'stderr',
    offset: Number(view.getBigUint64(1)),
    bytes: new Uint8Array(frame, OUTPUT_HEAD_BYTES),
  };
}

/** @internal */
export function encodeInput(offset: number, bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  const frame = new Uint8Array(INPUT_HEAD_BYTES + bytes.length);
  new DataView(frame.buffer).setBigUint64(0, BigInt(offset));
  frame.set(bytes, INPUT_HEAD_BYTES);
  return frame;
}
