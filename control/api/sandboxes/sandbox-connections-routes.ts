import { success } from '../../../shared/schemas/common.ts';
import {
  ConnectByName,
  NamedSandboxConnection,
  SandboxConnection,
  SandboxPath,
} from '../../../shared/schemas/sandbox.ts';
import { refusalsOf } from '../../../shared/sandbox-lifecycle.ts';
import { presentSandbox } from './present-sandbox.ts';
import { SandboxProcessList } from '../../../shared/schemas/sandbox-process.ts';
import { SANDBOX_HOST_ERRORS } from '../../http/route-errors.ts';
import { listSandboxProcesses } from './sandbox-processes.ts';
import { route } from '../../http/route.ts';
import { connectSandbox } from './connect-sandbox.ts';
import { findSandbox, findSandboxByName } from '../../region/find-sandbox.ts';
import { endpointsOf } from './sandbox-ports.ts';

const tag = 'Sandboxes';

const connectSandboxRoute = route({
  method: 'post',
  path: '/api/sandboxes/{sid}/connections',
  operationId: 'connectSandbox',
  scope: 'sandbox',
  event: 'sandbox.connected',
  summary: 'Get a short-lived WebSocket URL for the processes of a running sandbox',
  description:
    'Open a WebSocket to the URL within a minute to start, attach to and control processes. The connection outlives the token in the URL.',
  tag,
  params: SandboxPath,
  writesNothing: true,
  replies: { 200: success(SandboxConnection) },
  errors: ['not_found', ...refusalsOf('connect')],
  async handle({ deps, caller, params, note }) {
    note({ sandboxId: params.sid });
    return {
      status: 200,
      data: await connectSandbox(
        deps,
        caller,
        await findSandbox(deps, caller.accountId, params.sid),
      ),
    };
  },
});

const connectByNameRoute = route({
  method: 'post',
  path: '/api/sandboxes/connections',
  operationId: 'connectSandboxByName',
  scope: 'sandbox',
  event: 'sandbox.connected',
  summary: 'Get the running sandbox of a name, with a WebSocket URL for its processes',
  description:
    'As connectSandbox does, for a caller who knows the name alone: one request instead of a look-up and another one.',
  tag,
  body: ConnectByName,
  writesNothing: true,
  replies: { 200: success(NamedSandboxConnection) },
  errors: ['not_found', ...refusalsOf('connect')],
  async handle({ deps, caller, body, note }) {
    const record = await findSandboxByName(deps, caller.accountId, body.name);
    note({ sandboxId: record.id });
    const connection = await connectSandbox(deps, caller, record);
    const sandbox = presentSandbox(record, await endpointsOf(deps, record));
    return { status: 200, data: { ...connection, sandbox } };
  },
});

const listProcesses = route({
  method: 'get',
  path: '/api/sandboxes/{sid}/processes',
  operationId: 'listSandboxProcesses',
  scope: 'read',
  summary: 'List the processes of sessions in a running sandbox',
  description:
    'Those that sessions started, also when nobody is attached: they run on, and sessions attach to them by their ids. Commands of execs have a list of their own. Asking does not count as a use of the sandbox.',
  tag,
  params: SandboxPath,
  replies: { 200: success(SandboxProcessList) },
  errors: ['not_found', ...refusalsOf('connect'), ...SANDBOX_HOST_ERRORS],
  async handle({ deps, caller, params, requestId }) {
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    const processes = await listSandboxProcesses(deps, ref, { requestId });
    return { status: 200, data: { processes } };
  },
});

export const sandboxConnectionRoutes = [connectByNameRoute, connectSandboxRoute, listProcesses];
