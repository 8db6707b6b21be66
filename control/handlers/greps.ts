import { DiskPath, success } from '../../shared/schemas/common.ts';
import { GrepResult, RunGrep } from '../../shared/schemas/grep.ts';
import { route } from '../http/route.ts';
import { DISK_HOST_ERRORS } from '../http/route-errors.ts';
import { searchDisk } from '../services/search-disk.ts';

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
    const { matches, stoppedReason, filesScanned, computeSecondsUsed, listingMs, grepMs } = result;
    note({
      diskId: params.id,
      matches: matches.length,
      stoppedReason,
      filesScanned,
      computeSecondsUsed,
      listingMs,
      grepMs,
    });
    return { status: 200, data: result };
  },
});

export const grepRoutes = [grepDisk];
