import { success } from '../../../shared/schemas/common.ts';
import { Sandbox, SandboxPath, WaitQuery } from '../../../shared/schemas/sandbox.ts';
import {
  ForkSandbox,
  SandboxTimeout,
  StartSandbox,
} from '../../../shared/schemas/sandbox-input.ts';
import { mountScope } from '../../http/key-rights.ts';
import { presentSandbox } from './present-sandbox.ts';
import { type Route, route } from '../../http/route.ts';
import { SANDBOX_HOST_ERRORS } from '../../http/route-errors.ts';
import { refusalsOf } from '../../../shared/sandbox-lifecycle.ts';
import { actOnSandbox } from './sandbox-actions.ts';
import { forkSandbox } from './fork-sandbox.ts';
import { endpointsOf } from './sandbox-ports.ts';
import { setSandboxLimits } from './set-sandbox-limits.ts';

const tag = 'Sandboxes';

const startSandbox = route({
  method: 'post',
  path: '/api/sandboxes/{sid}/start',
  operationId: 'startSandbox',
  scope: 'sandbox',
  event: 'sandbox.started',
  furtherScope: mountScope,
  summary: 'Start a sandbox from its disk; one that runs or starts already stays as it is',
  description:
    'Memory of a paused sandbox is discarded: it boots from its disk. Answered while it starts, or with `wait` when it runs, if that is within 20 seconds.',
  tag,
  params: SandboxPath,
  query: WaitQuery,
  body: StartSandbox,
  bodyOptional: true,
  bringsUpSandbox: true,
  replies: { 200: success(Sandbox) },
  errors: [
    'not_found',
    'disk_in_use',
    'sandbox_mounts_while_active',
    ...refusalsOf('start'),
    ...SANDBOX_HOST_ERRORS,
  ],
  async handle({ deps, caller, params, query, body, requestId, note }) {
    note({ sandboxId: params.sid });
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    const { mounts, copy_hook: copyHook } = body ?? {};
    const action = { action: 'start', wait: query.wait, mounts, copyHook } as const;
    const record = await actOnSandbox(deps, ref, action, { requestId });
    return { status: 200, data: presentSandbox(record, await endpointsOf(deps, record)) };
  },
});

const EVENTS = {
  stop: 'sandbox.stopped',
  pause: 'sandbox.paused',
  resume: 'sandbox.resumed',
} as const;

/** An action without a body. */
const actionRoute = (
  action: 'stop' | 'pause' | 'resume',
  texts: Pick<Route, 'summary' | 'description'>,
): Route =>
  route({
    method: 'post',
    path: `/api/sandboxes/{sid}/${action}`,
    operationId: `${action}Sandbox`,
    scope: 'sandbox',
    event: EVENTS[action],
    ...texts,
    tag,
    params: SandboxPath,
    query: WaitQuery,
    bringsUpSandbox: action === 'resume',
    replies: { 200: success(Sandbox) },
    errors: [
      'bad_request',
      'not_found',
      ...(action === 'resume' ? (['disk_in_use'] as const) : []),
      ...refusalsOf(action),
      ...SANDBOX_HOST_ERRORS,
    ],
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
  scope: 'sandbox',
  event: 'sandbox.forked',
  summary: 'Copy a sandbox that is running, paused or stopped, and start the copy',
  description:
    'The copy has the disk of the source and, when that runs or is paused, its memory. The source continues as before.',
  tag,
  params: SandboxPath,
  query: WaitQuery,
  body: ForkSandbox,
  bodyOptional: true,
  idempotent: true,
  bringsUpSandbox: true,
  replies: { 202: success(Sandbox) },
  errors: [
    'not_found',
    'sandbox_name_conflict',
    'sandbox_limit_reached',
    'account_limit_reached',
    'disk_in_use',
    ...refusalsOf('fork'),
    ...SANDBOX_HOST_ERRORS,
  ],
  async handle({ deps, caller, params, query, body, requestId, note }) {
    note({ sandboxId: params.sid });
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    const input = { ...body, wait: query.wait === true };
    const child = await forkSandbox(deps, caller, ref, input, { requestId });
    note({ childId: child.id, hostId: child.hostId });
    return { status: 202, data: presentSandbox(child, await endpointsOf(deps, child)) };
  },
});

const setSandboxLimitsRoute = route({
  method: 'post',
  path: '/api/sandboxes/{sid}/timeout',
  operationId: 'setSandboxLimits',
  scope: 'sandbox',
  event: 'sandbox.limits_changed',
  summary: 'Set how long a sandbox may run, or be idle, before it is paused',
  description: 'What is left out stays as it is.',
  tag,
  params: SandboxPath,
  body: SandboxTimeout,
  replies: { 200: success(Sandbox) },
  errors: ['not_found', ...SANDBOX_HOST_ERRORS],
  async handle({ deps, caller, params, body, requestId, note }) {
    note({ sandboxId: params.sid });
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    const record = await setSandboxLimits(deps, ref, body, { requestId });
    return { status: 200, data: presentSandbox(record, await endpointsOf(deps, record)) };
  },
});

export const sandboxLifecycleRoutes = [
  startSandbox,
  actionRoute('stop', {
    summary: 'Stop a sandbox; its processes end, its disk stays',
    description:
      'It shuts down by itself if it does so in time, and is ended otherwise. A paused one loses its memory.',
  }),
  actionRoute('pause', {
    summary: 'Pause a sandbox; memory and processes are kept, its machine ends',
    description:
      'What is in memory is written to storage of the host. Answered while it is `pausing`, or with `wait` when it is paused, if that is within 20 seconds. A sandbox that is paused or stopped stays as it is.',
  }),
  actionRoute('resume', {
    summary: 'Resume a paused sandbox where it was',
    description:
      'Only a paused sandbox can be resumed. One that runs, or resumes already, stays as it is. A pause that waits for requests (`drain_on_pause`) is cancelled.',
  }),
  forkSandboxRoute,
  setSandboxLimitsRoute,
];
