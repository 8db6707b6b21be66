import { success } from '../../shared/schemas/common.ts';
import {
  ForkSandbox,
  Sandbox,
  SandboxPath,
  SandboxTimeout,
  StartSandbox,
  WaitQuery,
} from '../../shared/schemas/sandbox.ts';
import { presentSandbox } from '../http/present-sandbox.ts';
import { type Route, route } from '../http/route.ts';
import { actOnSandbox } from '../services/sandbox-actions.ts';
import { forkSandbox } from '../services/fork-sandbox.ts';
import { endpointsOf } from '../services/sandbox-ports.ts';
import { setSandboxLimits } from '../services/set-sandbox-limits.ts';

const tag = 'Sandboxes';

const startSandbox = route({
  method: 'post',
  path: '/api/sandboxes/{sid}/start',
  operationId: 'startSandbox',
  summary: 'Start a sandbox from its disk; one that runs or starts already stays as it is',
  tag,
  params: SandboxPath,
  query: WaitQuery,
  body: StartSandbox,
  bodyOptional: true,
  bringsUpSandbox: true,
  replies: { 200: success(Sandbox) },
  errors: [400, 404, 409, 413, 504],
  async handle({ deps, caller, params, query, body, requestId, note }) {
    note({ sandboxId: params.sid });
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    const action = { action: 'start', wait: query.wait, mounts: body?.mounts } as const;
    const record = await actOnSandbox(deps, ref, action, { requestId });
    return { status: 200, data: presentSandbox(record, await endpointsOf(deps, record)) };
  },
});

/** An action without a body. */
const actionRoute = (action: 'stop' | 'pause' | 'resume', summary: string): Route =>
  route({
    method: 'post',
    path: `/api/sandboxes/{sid}/${action}`,
    operationId: `${action}Sandbox`,
    summary,
    tag,
    params: SandboxPath,
    query: WaitQuery,
    bringsUpSandbox: action === 'resume',
    replies: { 200: success(Sandbox) },
    errors: [400, 404, 409, 504],
    async handle({ deps, caller, params, query, requestId, note }) {
      note({ sandboxId: params.sid });
      const ref = { accountId: caller.accountId, sandboxId: params.sid };
      const { wait } = query;
      const record = await actOnSandbox(deps, ref, { action, wait }, { requestId });
      return { status: 200, data: presentSandbox(record, await endpointsOf(deps, record)) };
    },
  });

const forkSandboxRoute = route({
  method: 'post',
  path: '/api/sandboxes/{sid}/fork',
  operationId: 'forkSandbox',
  summary: 'Copy a sandbox that is running, paused or stopped, and start the copy',
  tag,
  params: SandboxPath,
  query: WaitQuery,
  body: ForkSandbox,
  bodyOptional: true,
  idempotent: true,
  bringsUpSandbox: true,
  replies: { 202: success(Sandbox) },
  errors: [400, 404, 409, 413, 504],
  async handle({ deps, caller, params, query, body, requestId, note }) {
    note({ sandboxId: params.sid });
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    const input = { ...body, wait: query.wait === true };
    const child = await forkSandbox(deps, ref, input, { requestId });
    note({ childId: child.id, hostId: child.hostId });
    return { status: 202, data: presentSandbox(child, await endpointsOf(deps, child)) };
  },
});

const setSandboxLimitsRoute = route({
  method: 'post',
  path: '/api/sandboxes/{sid}/timeout',
  operationId: 'setSandboxLimits',
  summary: 'Set how long a sandbox may run, or be idle, before it is paused',
  tag,
  params: SandboxPath,
  body: SandboxTimeout,
  replies: { 200: success(Sandbox) },
  errors: [400, 404, 413, 504],
  async handle({ deps, caller, params, body, requestId, note }) {
    note({ sandboxId: params.sid });
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    const record = await setSandboxLimits(deps, ref, body, { requestId });
    return { status: 200, data: presentSandbox(record, await endpointsOf(deps, record)) };
  },
});

export const sandboxLifecycleRoutes = [
  startSandbox,
  actionRoute('stop', 'Stop a sandbox; its processes end, its disk stays'),
  actionRoute('pause', 'Pause a sandbox; memory and processes are kept, its machine ends'),
  actionRoute('resume', 'Resume a paused sandbox where it was'),
  forkSandboxRoute,
  setSandboxLimitsRoute,
];
