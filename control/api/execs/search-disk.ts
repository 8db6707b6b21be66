import Type from 'typebox';
import { AppError } from '../../../shared/errors.ts';
import type { GrepOutcome } from '../../../shared/jobs/command-kinds.ts';
import type { JobPayload } from '../../../shared/jobs/jobs.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import {
  GrepMatch,
  type GrepMatches,
  type GrepResult,
  type RunGrep,
} from '../../../shared/schemas/grep.ts';
import { inSpan } from '../../../shared/spans.ts';
import { compile } from '../../../shared/validate.ts';
import type { Deps } from '../../region/deps.ts';
import type { JobReply } from '../../region/job-dispatch.ts';
import { callDiskHost, type RequestContext } from '../../region/call-disk-host.ts';
import { findDisk } from '../../region/find-disk.ts';
import { checkRelative } from '../../http/relative-path.ts';
import { parseJson } from '../../../shared/json.ts';

export interface SearchRequest {
  readonly accountId: string;
  readonly diskId: string;
  readonly input: RunGrep;
  /** When the request arrived, on the clock of `performance.now()`. */
  readonly arrivedAt: number;
}

const checkMatches = compile(Type.Array(GrepMatch));
const readMatches = (json: Buffer): GrepMatches =>
  checkMatches(parseJson(json.toString('utf8')), 'matches');

/** The answer to a search whose deadline passed before it began. */
const NOT_BEGUN: GrepOutcome = {
  stoppedReason: 'deadline',
  filesScanned: 0,
  containersDispatched: 0,
  computeSecondsUsed: 0,
  listingMs: 0,
  grepMs: 0,
};

function checkPattern(pattern: string): void {
  if (Buffer.byteLength(pattern) > SCHEMA_LIMITS.grepPatternBytesMax) {
    throw new AppError(
      'bad_request',
      `pattern is longer than ${SCHEMA_LIMITS.grepPatternBytesMax} bytes`,
    );
  }
  if (pattern.includes('\0')) throw new AppError('bad_request', 'pattern contains a NUL character');
}

/** The directory from the disk's root; empty for the root itself. */
function relativeDirectory(directory: string): string {
  const relative = directory.replaceAll(/^\/+|\/+$/gu, '');
  if (relative !== '') checkRelative(relative, 'directory');
  return relative;
}

type OnMatches = (matches: GrepMatches) => void;

function payloadOf(
  { accountId, diskId, input }: SearchRequest,
  inParts: boolean,
): JobPayload<'grep.run'> {
  const {
    recursive = false,
    concurrency = SCHEMA_LIMITS.grepConcurrencyDefault,
    maxResults = SCHEMA_LIMITS.grepResultsDefault,
  } = input;
  checkPattern(input.pattern);
  return {
    accountId,
    diskId,
    directory: relativeDirectory(input.directory),
    pattern: input.pattern,
    recursive,
    concurrency: Math.min(concurrency, SCHEMA_LIMITS.grepConcurrencyMax),
    maxResults: Math.min(maxResults, SCHEMA_LIMITS.grepResultsMax),
    ...(inParts ? { inParts } : {}),
  };
}

/**
 * Searches a directory of a disk (docs/api.md, Grep). A deadline that passes anywhere on
 * the way is an answer too.
 * @param onMatches given matches while the search runs; the result has only the others
 * @throws AppError `not_found`, `bad_request`, `no_capacity`, `unavailable`
 */
export async function searchDisk(
  deps: Deps,
  request: SearchRequest,
  context: RequestContext,
  onMatches?: OnMatches,
): Promise<GrepResult> {
  const { arrivedAt, input } = request;
  const payload = payloadOf(request, onMatches !== undefined);
  const { maxDurationSeconds = SCHEMA_LIMITS.grepSecondsMax } = input;
  const durationMs = Math.min(maxDurationSeconds * 1000, SCHEMA_LIMITS.grepDurationMsMax);
  const deadlineAt = Math.floor(Date.now() - (performance.now() - arrivedAt) + durationMs);
  const disk = await inSpan({ name: 'directory.read' }, () =>
    findDisk(deps, request.accountId, request.diskId),
  );
  const onPart = onMatches && ((part: Buffer) => onMatches(readMatches(part)));
  const job = {
    ...{ kind: 'grep.run' as const, payload, deadlineAt },
    ...(onPart === undefined ? {} : { onPart }),
  };
  const { result, body } = await callDiskHost(deps, [disk], job, context).catch(tooLate);
  const [matches = Buffer.from('[]')] = body;
  return {
    ...result,
    matches: readMatches(matches),
    durationMs: Math.round(performance.now() - arrivedAt),
  };
}

function tooLate(error: unknown): JobReply<'grep.run'> {
  if (error instanceof AppError && error.code === 'timeout') return { result: NOT_BEGUN, body: [] };
  throw error;
}
