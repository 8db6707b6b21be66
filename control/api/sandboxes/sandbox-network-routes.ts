import { PageQuery, success, successPage } from '../../../shared/schemas/common.ts';
import { NetworkDecisionList } from '../../../shared/schemas/network-decision.ts';
import { NetworkPolicy, ShownNetworkPolicy } from '../../../shared/schemas/network-policy.ts';
import { SandboxPath } from '../../../shared/schemas/sandbox.ts';
import { route } from '../../http/route.ts';
import { SANDBOX_HOST_ERRORS } from '../../http/route-errors.ts';
import { refusalsOf } from '../../../shared/sandbox-lifecycle.ts';
import { getNetworkPolicy, listDecisions, setNetworkPolicy } from './sandbox-network.ts';

const tag = 'Sandboxes';

const getSandboxNetwork = route({
  method: 'get',
  path: '/api/sandboxes/{sid}/network',
  operationId: 'getSandboxNetwork',
  scope: 'read',
  summary: 'Show what a sandbox may connect to',
  description: 'Secrets of its rules are left out.',
  tag,
  params: SandboxPath,
  replies: { 200: success(ShownNetworkPolicy) },
  errors: ['not_found'],
  async handle({ deps, caller, params }) {
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    return { status: 200, data: await getNetworkPolicy(deps, ref) };
  },
});

const setSandboxNetwork = route({
  method: 'put',
  path: '/api/sandboxes/{sid}/network',
  operationId: 'setSandboxNetwork',
  scope: 'sandbox',
  event: 'sandbox.network_changed',
  summary: 'Replace what a running sandbox may connect to; new connections follow it at once',
  description: 'The whole policy is replaced. Connections that are open go on.',
  tag,
  params: SandboxPath,
  body: NetworkPolicy,
  bodyKeysUnique: true,
  replies: { 200: success(ShownNetworkPolicy) },
  errors: [
    'not_found',
    'sandbox_network_conflict',
    ...refusalsOf('network'),
    ...SANDBOX_HOST_ERRORS,
  ],
  async handle({ deps, caller, params, body, requestId, note }) {
    note({ sandboxId: params.sid });
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    return { status: 200, data: await setNetworkPolicy(deps, ref, body, { requestId }) };
  },
});

const listSandboxDecisions = route({
  method: 'get',
  path: '/api/sandboxes/{sid}/network/decisions',
  operationId: 'listSandboxNetworkDecisions',
  scope: 'read',
  summary: 'List what was decided about connections of a sandbox, newest first',
  description:
    'Connections that were judged alike are one entry with a count. They are kept for six hours after the last one.',
  tag,
  params: SandboxPath,
  query: PageQuery,
  replies: { 200: successPage(NetworkDecisionList) },
  errors: ['bad_request', 'not_found', ...SANDBOX_HOST_ERRORS],
  async handle({ deps, caller, params, query, requestId }) {
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    const { decisions, nextCursor } = await listDecisions(deps, ref, query, { requestId });
    return { status: 200, data: { decisions }, nextCursor };
  },
});

export const sandboxNetworkRoutes = [getSandboxNetwork, setSandboxNetwork, listSandboxDecisions];
