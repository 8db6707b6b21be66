import assert from 'node:assert';
import { DIRECTORY_LIMITS } from '../../shared/directory/limits.ts';
import { DAY_MS, KiB, MiB } from '../../shared/units.ts';

/** Limits of requests. */
export const HTTP_LIMITS = {
  requestBodyBytesMax: 8 * MiB, // A command of 1 MiB whose every byte is escaped as \u00XX fits.
  // Bodies that a control node has under way: beyond the first bytes of each, accounts share pieces
  // of memory, 128 MiB in all.
  bodyUncountedBytesMax: 16 * KiB,
  bodyPieceBytes: 64 * KiB,
  bodyPiecesPerNodeMax: 2048,
  // In the header X-Ignored-Fields; a name is cut before it is percent-encoded.
  ignoredFieldsListedMax: 16,
  ignoredFieldNameLengthMax: 64,
  ignoredFieldsListLengthMax: 1 * KiB,

  // For how long refused calls without a key are added up for the audit log's file, and of how many
  // addresses.
  auditStrangersSummedMs: 60_000,
  auditStrangersMax: 1_000,
  // Lines that wait for the audit log's file; further ones are reported as lost.
  auditLinesWaitingMax: 10_000,

  // A download through control is broken off when its host sends nothing for this long.
  downloadIdleMsMax: 120_000,

  // Idempotency-Key
  idempotencyKeyLengthMax: 255,
  idempotencyTtlMs: DAY_MS,
  idempotentAnswerBytesMax: 1 * MiB,
  // Requests that wait for the answer to another one with the same key: each looks for it in Redis.
  idempotentWaitsPerNodeMax: 512,
} as const;

assert(HTTP_LIMITS.idempotentAnswerBytesMax * 2 < DIRECTORY_LIMITS.idempotentBytesPerAccountMax);
