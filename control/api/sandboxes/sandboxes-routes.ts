import { success } from '../../../shared/schemas/common.ts';
import {
  Sandbox,
  SandboxDeletionFailure,
  SandboxList,
  SandboxListQuery,
  SandboxPath,
  WaitQuery,
} from '../../../shared/schemas/sandbox.ts';
import { CreateSandbox } from '../../../shared/schemas/sandbox-input.ts';
import { SandboxUsage } from '../../../shared/schemas/sandbox-usage.ts';
import { mountScope } from '../../http/key-rights.ts';
import { presentSandbox } from './present-sandbox.ts';
import { route } from '../../http/route.ts';
import { SANDBOX_HOST_ERRORS } from '../../http/route-errors.ts';
import { refusalsOf } from '../../../shared/sandbox-lifecycle.ts';
import { deleteSandbox } from './sandbox-actions.ts';
import { createSandbox } from './create-sandbox.ts';
import { endpointsOf } from './sandbox-ports.ts';
import { measureSandbox } from './sandbox-usage.ts';
import { findSandbox } from '../../region/find-sandbox.ts';

const tag = 'Sandboxes';

const listSandboxes = route({
  method: 'get',
  path: '/api/sandboxes',
  operationId: 'listSandboxes',
  scope: 'read',
  summary: 'List the sandboxes of the account, oldest first',
  description: 'Sandboxes in every state.',
  tag,
  query: SandboxListQuery,
  replies: { 200: success(SandboxList) },
  errors: ['bad_request'],
  async handle({ deps, caller, query }) {
    const { filesystem, name } = query;
    const { sandboxes: directory } = deps.directory;
    const records =
      name === undefined
        ? await directory.list(caller.accountId)
        : [await directory.find(caller.accountId, name)].filter((found) => found !== undefined);
    const shown = await Promise.all(
      records.map(async (record) => presentSandbox(record, await endpointsOf(deps, record))),
    );
    const sandboxes = shown.filter(
      ({ mounts }) =>
        filesystem === undefined || mounts.some(({ disk_id: diskId }) => diskId === filesystem),
    );
    return { status: 200, data: { sandboxes } };
  },
});

const createSandboxRoute = route({
  method: 'post',
  path: '/api/sandboxes',
  operationId: 'createSandbox',
  scope: 'sandbox',
  event: 'sandbox.created',
  furtherScope: mountScope,
  summary: 'Create a sandbox, a virtual machine of its own, and start it',
  description:
    'Answered while it starts, or with `wait` when it runs, if that is within 20 seconds. Every field is optional.',
  tag,
  query: WaitQuery,
  body: CreateSandbox,
  bodyOptional: true,
  idempotent: true,
  plainUnauthorized: true,
  bringsUpSandbox: true,
  replies: { 202: success(Sandbox) },
  errors: [
    'not_found',
    'image_not_ready',
    'sandbox_name_conflict',
    'sandbox_limit_reached',
    'account_limit_reached',
    'snapshot_not_ready',
    'disk_in_use',
    ...SANDBOX_HOST_ERRORS,
  ],
  async handle({ deps, caller, query, body, requestId, note }) {
    const input = { ...body, wait: query.wait === true };
    const record = await createSandbox(deps, caller, input, { requestId });
    note({ sandboxId: record.id, hostId: record.hostId });
    return { status: 202, data: presentSandbox(record, await endpointsOf(deps, record)) };
  },
});

const getSandbox = route({
  method: 'get',
  path: '/api/sandboxes/{sid}',
  operationId: 'getSandbox',
  scope: 'read',
  summary: 'Show a sandbox',
  description: 'What the record does not have, the sandbox does not have now.',
  tag,
  params: SandboxPath,
  replies: { 200: success(Sandbox) },
  errors: ['not_found'],
  async handle({ deps, caller, params }) {
    const record = await findSandbox(deps, caller.accountId, params.sid);
    return { status: 200, data: presentSandbox(record, await endpointsOf(deps, record)) };
  },
});

const getSandboxMetrics = route({
  method: 'get',
  path: '/api/sandboxes/{sid}/metrics',
  operationId: 'getSandboxMetrics',
  scope: 'read',
  summary: 'Measure what a sandbox uses',
  description:
    'Measured by its host for this request. What the host cannot measure is missing, and so is what only a running sandbox has.',
  tag,
  params: SandboxPath,
  replies: { 200: success(SandboxUsage) },
  errors: ['not_found', ...SANDBOX_HOST_ERRORS],
  async handle({ deps, caller, params, requestId }) {
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    return { status: 200, data: await measureSandbox(deps, ref, { requestId }) };
  },
});

const deleteSandboxRoute = route({
  method: 'delete',
  path: '/api/sandboxes/{sid}',
  operationId: 'deleteSandbox',
  scope: 'sandbox',
  event: 'sandbox.deleted',
  summary: 'Delete a sandbox that is stopped, exited or failed, with its disk',
  description: 'Forks that share its disk have to be deleted first; the error names them.',
  tag,
  params: SandboxPath,
  replies: {},
  empty: [204],
  errors: ['not_found', 'sandbox_has_forks', ...refusalsOf('delete'), ...SANDBOX_HOST_ERRORS],
  failures: { 409: SandboxDeletionFailure },
  async handle({ deps, caller, params, requestId, note }) {
    note({ sandboxId: params.sid });
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    await deleteSandbox(deps, ref, { requestId });
    return { status: 204 };
  },
});

export const sandboxRoutes = [
  listSandboxes,
  createSandboxRoute,
  getSandbox,
  getSandboxMetrics,
  deleteSandboxRoute,
];
