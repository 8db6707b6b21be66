import { DiskPath, success } from '../../../shared/schemas/common.ts';
import { GrepResult, RunGrep } from '../../../shared/schemas/grep.ts';
import { route } from '../../http/route.ts';
import { DISK_HOST_ERRORS } from '../../http/route-errors.ts';
import { EVENT_STREAM_HEADERS, grepEvents, type GrepSummary } from './grep-events-routes.ts';
import { searchDisk } from './search-disk.ts';

function notesOf(
  diskId: string,
  { stoppedReason, filesScanned, computeSecondsUsed, listingMs, grepMs }: GrepSummary,
  matches: number,
): Record<string, unknown> {
  const figures = { filesScanned, computeSecondsUsed, listingMs, grepMs };
  return { diskId, matches, stoppedReason, ...figures };
}

const grepDisk = route({
  method: 'post',
  path: '/api/disks/{id}/grep',
  operationId: 'grepDisk',
  scope: 'read',
  summary: 'Search the files of a directory for a regular expression, with parallel workers',
  description:
    'Text files are searched line by line until the directory is done or a bound is reached, which `stoppedReason` tells. Nothing is written.',
  tag: 'Serverless execution',
  params: DiskPath,
  body: RunGrep,
  replies: { 200: success(GrepResult) },
  errors: ['not_found', ...DISK_HOST_ERRORS],
  async handle({ deps, caller, params, body, requestId, callerGone, arrivedAt, note }) {
    const request = { accountId: caller.accountId, diskId: params.id, input: body, arrivedAt };
    const result = await searchDisk(deps, request, { requestId, signal: callerGone() });
    const { matches, ...summary } = result;
    note(notesOf(params.id, summary, matches.length));
    return { status: 200, data: result };
  },
});

const streamGrep = route({
  method: 'post',
  path: '/api/disks/{id}/grep/stream',
  operationId: 'streamGrep',
  scope: 'read',
  summary: 'Search as grep does, and be given matches as they are found',
  description:
    'Server-sent events: `matches` with a list of matches, any number of times; then `end` with the other fields of a grep’s answer, or `failed` with `code` and `error` when the search was lost on the way. What fails before the first match is answered as an error.',
  tag: 'Serverless execution',
  params: DiskPath,
  body: RunGrep,
  replies: {},
  events: [200],
  errors: ['not_found', ...DISK_HOST_ERRORS],
  async handle({ deps, caller, params, body, requestId, callerGone, arrivedAt, note }) {
    const request = { accountId: caller.accountId, diskId: params.id, input: body, arrivedAt };
    const context = { requestId, signal: callerGone() };
    note({ diskId: params.id });
    const stream = await grepEvents(
      (onMatches) => searchDisk(deps, request, context, onMatches),
      (summary, matchCount) => note(notesOf(params.id, summary, matchCount)),
    );
    return { status: 200, headers: EVENT_STREAM_HEADERS, stream };
  },
});

export const grepRoutes = [grepDisk, streamGrep];
