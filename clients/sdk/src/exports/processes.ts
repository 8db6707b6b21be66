/**
 * Processes in sandboxes.
 *
 * @module processes
 */
export { type Input, Process, type ProcessResult, type StartOptions } from '../process.ts';
export type { OutputChunk, ProcessExit } from '../session/frames.ts';
export type { SessionOptions } from '../session/session.ts';
