import type { WebSocket } from 'ws';
import { ProcessError } from '../../sandboxes/processes/process-error.ts';
import type { ProcessExit } from '../../sandboxes/processes/process-exit.ts';

/** Close codes (RFC 6455, section 7.4.1). */
export const CLOSE_CODES = {
  done: 1000,
  leaving: 1001, // The sandbox pauses, or its host restarts.
  policy: 1008,
  failed: 1011,
} as const;

/** A server event as clients read it: fields that are undefined are left out. */
type ServerEvent =
  | { readonly type: 'started' | 'attached'; readonly process_id: string }
  | { readonly type: 'killed' | 'resized' | 'alive' }
  | { readonly type: 'input'; readonly offset: number; readonly end: number }
  | { readonly type: 'error'; readonly error: string; readonly message: string }
  | {
      readonly type: 'exit';
      readonly status: ProcessExit['status'];
      readonly cursor: number;
      readonly exit_code: number | undefined;
      readonly exit_reason: string | undefined;
    };

/** @param left called when it has left this host, or cannot */
export const sendEvent = (socket: WebSocket, event: ServerEvent, left?: () => void): void =>
  socket.send(JSON.stringify(event), left);

/**
 * Begins the closing handshake. The client's answer must still be read, so a paused socket reads
 * on.
 */
export function hangUp(socket: WebSocket, code: number, reason?: string): void {
  socket.close(code, reason);
  socket.resume();
}

/**
 * Tells the client that its process has ended, and hangs up once that has left this host: the time
 * for the closing handshake is no limit for a slow client that has output to read before.
 */
export function sendExit(socket: WebSocket, exit: ProcessExit): void {
  const { status, cursor, exitCode, reason } = exit;
  const event = { status, cursor, exit_code: exitCode, exit_reason: reason };
  sendEvent(socket, { type: 'exit', ...event }, () =>
    hangUp(socket, CLOSE_CODES.done, reason ?? `exit code ${exitCode ?? 'unknown'}`),
  );
}

/** Tells the client what it was refused for, and hangs up. */
export function sendError(socket: WebSocket, error: ProcessError): void {
  const { code, message } = error;
  sendEvent(socket, { type: 'error', error: code, message });
  const closeCode =
    code === 'internal_error'
      ? CLOSE_CODES.failed
      : code === 'invalid_request'
        ? CLOSE_CODES.policy
        : CLOSE_CODES.done;
  hangUp(socket, closeCode, code);
}

/** Turns any failure into an error that clients may see. */
export const toProcessError = (error: unknown): ProcessError =>
  error instanceof ProcessError
    ? error
    : new ProcessError('internal_error', 'the host failed to do it', { cause: error });
