import { PageQuery, success, successPage } from '../../../shared/schemas/common.ts';
import { SandboxPath } from '../../../shared/schemas/sandbox.ts';
import {
  CreatedPortToken,
  CreatePortToken,
  PortToken,
  PortTokenList,
  PortTokenPath,
  SandboxPort,
  SandboxPortList,
  SandboxPortPath,
} from '../../../shared/schemas/sandbox-port.ts';
import { route } from '../../http/route.ts';
import {
  createPortToken,
  deletePortToken,
  exposePort,
  getPortToken,
  listPorts,
  listPortTokens,
  unexposePort,
} from './sandbox-ports.ts';

const tag = 'Sandbox ports';
const ports = '/api/sandboxes/{sid}/ports';
const tokens = '/api/sandboxes/{sid}/port-tokens';

const refOf = (
  { accountId }: { readonly accountId: string },
  { sid }: { readonly sid: string },
): { accountId: string; sandboxId: string } => ({ accountId, sandboxId: sid });

const listSandboxPorts = route({
  method: 'get',
  path: ports,
  operationId: 'listSandboxPorts',
  scope: 'read',
  summary: 'List the ports of a sandbox that were exposed to the public',
  description: 'Ports that a service of the sandbox publishes are not among them.',
  tag,
  params: SandboxPath,
  replies: { 200: success(SandboxPortList) },
  errors: ['not_found'],
  async handle({ deps, caller, params, note }) {
    note({ sandboxId: params.sid });
    return { status: 200, data: { ports: await listPorts(deps, refOf(caller, params)) } };
  },
});

const exposeSandboxPort = route({
  method: 'put',
  path: `${ports}/{port}`,
  operationId: 'exposeSandboxPort',
  scope: 'sandbox',
  event: 'sandbox.port_exposed',
  summary: 'Expose a port to the public: requests to it need no token',
  description:
    'Whoever knows the hostname reaches the port, until the key ends that exposes it. A request to a paused or stopped sandbox wakes it.',
  tag,
  params: SandboxPortPath,
  replies: { 200: success(SandboxPort), 201: success(SandboxPort) },
  errors: ['bad_request', 'not_found'],
  async handle({ deps, caller, params, note }) {
    note({ sandboxId: params.sid });
    const { isNew, exposed } = await exposePort(deps, caller, params.sid, params.port);
    return { status: isNew ? 201 : 200, data: exposed };
  },
});

const unexposeSandboxPort = route({
  method: 'delete',
  path: `${ports}/{port}`,
  operationId: 'unexposeSandboxPort',
  scope: 'sandbox',
  event: 'sandbox.port_closed',
  summary: 'Expose a port no longer; one that a service publishes stays public',
  description: 'Open connections go on; port tokens keep working.',
  tag,
  params: SandboxPortPath,
  replies: {},
  empty: [204],
  errors: ['bad_request', 'not_found'],
  async handle({ deps, caller, params, note }) {
    note({ sandboxId: params.sid });
    await unexposePort(deps, refOf(caller, params), params.port);
    return { status: 204 };
  },
});

const listSandboxPortTokens = route({
  method: 'get',
  path: tokens,
  operationId: 'listSandboxPortTokens',
  scope: 'read',
  summary: 'List the port tokens of a sandbox that have not expired, oldest first',
  description: 'The tokens themselves are never shown again.',
  tag,
  params: SandboxPath,
  query: PageQuery,
  replies: { 200: successPage(PortTokenList) },
  errors: ['bad_request', 'not_found'],
  async handle({ deps, caller, params, query, note }) {
    note({ sandboxId: params.sid });
    const page = await listPortTokens(deps, refOf(caller, params), query);
    return { status: 200, data: { tokens: page.tokens }, nextCursor: page.nextCursor };
  },
});

const createSandboxPortToken = route({
  method: 'post',
  path: tokens,
  operationId: 'createSandboxPortToken',
  scope: 'sandbox',
  event: 'sandbox.port_token_created',
  summary: 'Create a token that opens a port of a sandbox',
  description:
    'The token is in this answer and nowhere else. It opens one port of one sandbox, whether that is exposed or not.',
  tag,
  params: SandboxPath,
  body: CreatePortToken,
  idempotent: true,
  replies: { 201: success(CreatedPortToken) },
  errors: ['not_found'],
  async handle({ deps, caller, params, body, note }) {
    note({ sandboxId: params.sid });
    const created = await createPortToken(deps, refOf(caller, params), body, caller);
    note({ portTokenId: created.id });
    return { status: 201, data: created };
  },
});

const getSandboxPortToken = route({
  method: 'get',
  path: `${tokens}/{tokenId}`,
  operationId: 'getSandboxPortToken',
  scope: 'read',
  summary: 'Show a port token, without the token itself',
  description: 'The token itself is never shown again.',
  tag,
  params: PortTokenPath,
  replies: { 200: success(PortToken) },
  errors: ['not_found'],
  async handle({ deps, caller, params, note }) {
    note({ sandboxId: params.sid });
    return { status: 200, data: await getPortToken(deps, refOf(caller, params), params.tokenId) };
  },
});

const deleteSandboxPortToken = route({
  method: 'delete',
  path: `${tokens}/{tokenId}`,
  operationId: 'deleteSandboxPortToken',
  scope: 'sandbox',
  event: 'sandbox.port_token_deleted',
  summary: 'Revoke a port token; open connections stay',
  description: 'The next request with the token is refused.',
  tag,
  params: PortTokenPath,
  replies: {},
  empty: [204],
  errors: ['not_found'],
  async handle({ deps, caller, params, note }) {
    note({ sandboxId: params.sid });
    await deletePortToken(deps, refOf(caller, params), params.tokenId);
    return { status: 204 };
  },
});

export const sandboxPortRoutes = [
  listSandboxPorts,
  exposeSandboxPort,
  unexposeSandboxPort,
  listSandboxPortTokens,
  createSandboxPortToken,
  getSandboxPortToken,
  deleteSandboxPortToken,
];
