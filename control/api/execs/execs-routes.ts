import { DiskPath, success } from '../../../shared/schemas/common.ts';
import { ExecResult, RunExec, RunMultiExec } from '../../../shared/schemas/exec.ts';
import { route } from '../../http/route.ts';
import { DISK_HOST_ERRORS } from '../../http/route-errors.ts';
import { execMounts, wholeDisk } from './exec-mounts.ts';
import { runExec } from './run-exec.ts';

const tag = 'Serverless execution';

const execOnDisk = route({
  method: 'post',
  path: '/api/disks/{id}/exec',
  operationId: 'execOnDisk',
  scope: 'disk',
  event: 'disk.exec',
  fillsDisks: true,
  summary: 'Run a shell command with the disk at /mnt/service and wait for its end',
  description:
    'The command runs as `bash -c` in a container of its own, without a network. With a 503 it was not begun.',
  tag,
  params: DiskPath,
  body: RunExec,
  idempotent: true,
  replies: { 200: success(ExecResult) },
  errors: ['not_found', 'disk_in_use', 'delegation_revoked', 'timeout', ...DISK_HOST_ERRORS],
  async handle({ deps, caller, params, body, requestId, callerGone, arrivedAt, note }) {
    const { accountId } = caller;
    const request = { accountId, mounts: [wholeDisk(params.id)], command: body.command, arrivedAt };
    const result = await runExec(deps, request, { requestId, signal: callerGone() });
    note({ diskId: params.id, exitCode: result.exitCode, ...result.timing });
    return { status: 200, data: result };
  },
});

const execOnDisks = route({
  method: 'post',
  path: '/api/exec',
  operationId: 'execOnDisks',
  scope: 'disk',
  event: 'disk.exec',
  fillsDisks: true,
  summary: 'Run a shell command with several disks below /mnt/service and wait for its end',
  description:
    'Either every disk is mounted or the command does not run. Paths of `disks` may not overlap.',
  tag,
  body: RunMultiExec,
  bodyKeysUnique: true,
  idempotent: true,
  replies: { 200: success(ExecResult) },
  errors: [
    'not_found',
    'disk_in_use',
    'delegation_conflict',
    'delegation_revoked',
    'timeout',
    ...DISK_HOST_ERRORS,
  ],
  async handle({ deps, caller, body, requestId, callerGone, arrivedAt, note }) {
    const { accountId } = caller;
    const mounts = execMounts(body.disks);
    const request = { accountId, mounts, command: body.command, arrivedAt };
    note({ diskIds: mounts.map(({ diskId }) => diskId) });
    const result = await runExec(deps, request, { requestId, signal: callerGone() });
    note({ exitCode: result.exitCode, ...result.timing });
    return { status: 200, data: result };
  },
});

export const execRoutes = [execOnDisk, execOnDisks];
