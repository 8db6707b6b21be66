import type { GuestOutput } from '../../machines/guest-link/guest-types.ts';
import type { ProcessError } from './process-error.ts';
import type { ProcessExit } from './process-exit.ts';

/** A piece of output. Its bytes are valid during the call that passes it, and not after. */
export type OutputPiece = Omit<GuestOutput, 'processId'>;

/**
 * Callbacks to a client of a process. Each is called by the process, never while it makes a call
 * itself.
 */
export interface ProcessClient {
  output(piece: OutputPiece): void;
  /**
   * The process has taken all input before `taken`: nothing can lose it any more. Input goes on at
   * `end`.
   */
  inputTaken(taken: number, end: number): void;
  /** After the last byte of output; nothing follows. */
  ended(exit: ProcessExit): void;
  /** The process may run on, but tells this client nothing more. @param error absent for a pause */
  detached(error?: ProcessError): void;
}

/** A client of one process, and its position in the output. */
export class Attachment {
  readonly client: ProcessClient;
  /** Offset of the first byte that was not passed to the client yet. */
  cursor: number;
  /** Everything before this offset has left the host. */
  acknowledged: number;
  /** Whether output that comes now continues where the client is. */
  isLive = false;

  /** Frees the client's place among those of its sandbox. */
  readonly release: () => void;

  constructor(client: ProcessClient, offset: number, release: () => void) {
    this.client = client;
    this.release = release;
    this.cursor = offset;
    this.acknowledged = offset;
  }

  /** Sets where output begins: what came before was not kept. */
  begin(offset: number): void {
    this.isLive = true;
    this.cursor = Math.max(this.cursor, offset);
  }

  /** Passes on the part of the piece that the client does not have yet. */
  receive({ stream, offset, bytes }: OutputPiece): void {
    const end = offset + bytes.length;
    if (!this.isLive || end <= this.cursor) return;
    const from = Math.max(this.cursor, offset);
    this.cursor = end;
    this.client.output({ stream, offset: from, bytes: bytes.subarray(from - offset) });
  }
}
