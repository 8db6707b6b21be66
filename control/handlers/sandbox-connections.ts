import { success } from '../../shared/schemas/common.ts';
import { SandboxConnection, SandboxPath } from '../../shared/schemas/sandbox.ts';
import { route } from '../http/route.ts';
import { connectSandbox } from '../services/connect-sandbox.ts';

const connectSandboxRoute = route({
  method: 'post',
  path: '/api/sandboxes/{sid}/connections',
  operationId: 'connectSandbox',
  summary: 'Get a short-lived WebSocket URL for the processes of a running sandbox',
  tag: 'Sandboxes',
  params: SandboxPath,
  writesNothing: true,
  replies: { 200: success(SandboxConnection) },
  errors: [404, 409],
  async handle({ deps, caller, params, note }) {
    note({ sandboxId: params.sid });
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    return { status: 200, data: await connectSandbox(deps, ref) };
  },
});

export const sandboxConnectionRoutes = [connectSandboxRoute];
