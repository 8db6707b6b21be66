import { success } from '../../../shared/schemas/common.ts';
import { SandboxPath, WaitQuery } from '../../../shared/schemas/sandbox.ts';
import {
  ExecInSandbox,
  SandboxExec,
  SandboxExecList,
  SandboxExecPath,
} from '../../../shared/schemas/sandbox-exec.ts';
import { presentSandboxExec } from './present-sandbox.ts';
import { route } from '../../http/route.ts';
import { SANDBOX_HOST_ERRORS } from '../../http/route-errors.ts';
import { refusalsOf } from '../../../shared/sandbox-lifecycle.ts';
import {
  cancelSandboxExec,
  execInSandbox,
  getSandboxExec,
  listSandboxExecs,
} from './sandbox-execs.ts';

const tag = 'Sandboxes';

const listExecs = route({
  method: 'get',
  path: '/api/sandboxes/{sid}/execs',
  operationId: 'listSandboxExecs',
  scope: 'read',
  summary: 'List the newest commands of a sandbox in the order of their execution',
  description:
    'At most the newest 100, without their output. Commands of process connections are not among them.',
  tag,
  params: SandboxPath,
  replies: { 200: success(SandboxExecList) },
  errors: ['not_found', ...SANDBOX_HOST_ERRORS],
  async handle({ deps, caller, params, requestId }) {
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    const records = await listSandboxExecs(deps, ref, { requestId });
    return { status: 200, data: { execs: records.map((record) => presentSandboxExec(record)) } };
  },
});

const runExec = route({
  method: 'post',
  path: '/api/sandboxes/{sid}/execs',
  operationId: 'execInSandbox',
  scope: 'sandbox',
  event: 'sandbox.exec',
  summary: 'Run a shell command in a running sandbox',
  description:
    "Answered when the command runs, or with `wait` when it has ended, if that is within 20 seconds. Commands outlive the connection and restarts of the host's agent.",
  tag,
  params: SandboxPath,
  query: WaitQuery,
  body: ExecInSandbox,
  idempotent: true,
  replies: { 202: success(SandboxExec) },
  errors: ['not_found', 'rate_limited', ...refusalsOf('exec'), ...SANDBOX_HOST_ERRORS],
  async handle({ deps, caller, params, query, body, requestId, note }) {
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    note({ sandboxId: params.sid });
    const input = { ...body, wait: query.wait === true };
    const { exec, output } = await execInSandbox(deps, ref, input, { requestId });
    note({ execId: exec.id, exitCode: exec.exitCode });
    return { status: 202, data: presentSandboxExec(exec, output) };
  },
});

const getExec = route({
  method: 'get',
  path: '/api/sandboxes/{sid}/execs/{eid}',
  operationId: 'getSandboxExec',
  scope: 'read',
  summary: 'Show a command of a sandbox with what is kept of its output',
  description:
    'Output is what was written until now; when there is too much of it the beginning is dropped.',
  tag,
  params: SandboxExecPath,
  replies: { 200: success(SandboxExec) },
  errors: ['not_found', ...SANDBOX_HOST_ERRORS],
  async handle({ deps, caller, params, requestId }) {
    const ref = { accountId: caller.accountId, sandboxId: params.sid, execId: params.eid };
    const { exec, output } = await getSandboxExec(deps, ref, { requestId });
    return { status: 200, data: presentSandboxExec(exec, output) };
  },
});

const cancelExec = route({
  method: 'post',
  path: '/api/sandboxes/{sid}/execs/{eid}/cancel',
  operationId: 'cancelSandboxExec',
  scope: 'sandbox',
  event: 'sandbox.exec_cancelled',
  summary: 'End a command of a sandbox; one that has ended stays as it is',
  description: 'The command and what it started are killed.',
  tag,
  params: SandboxExecPath,
  replies: { 200: success(SandboxExec) },
  errors: ['not_found', ...SANDBOX_HOST_ERRORS],
  async handle({ deps, caller, params, requestId, note }) {
    const ref = { accountId: caller.accountId, sandboxId: params.sid, execId: params.eid };
    note({ sandboxId: params.sid, execId: params.eid });
    const exec = await cancelSandboxExec(deps, ref, { requestId });
    return { status: 200, data: presentSandboxExec(exec) };
  },
});

export const sandboxExecRoutes = [listExecs, runExec, getExec, cancelExec];
