import { DiskPath, success } from '../../shared/schemas/common.ts';
import { ExecResult, RunExec } from '../../shared/schemas/exec.ts';
import { route } from '../route.ts';
import { runExec } from '../services/run-exec.ts';

const execOnDisk = route({
  method: 'post',
  path: '/api/disks/{id}/exec',
  operationId: 'execOnDisk',
  summary: 'Run a shell command with the disk at /mnt/service and wait for its end',
  tag: 'Serverless execution',
  params: DiskPath,
  body: RunExec,
  replies: { 200: success(ExecResult) },
  errors: [400, 404, 413, 504],
  async handle({ deps, caller, params, body, requestId, signal, arrivedAt, note }) {
    const disk = { accountId: caller.accountId, diskId: params.id };
    const context = { requestId, signal };
    const result = await runExec(deps, disk, body.command, arrivedAt, context);
    note({ diskId: params.id, exitCode: result.exitCode, ...result.timing });
    return { status: 200, data: result };
  },
});

export const execRoutes = [execOnDisk];
