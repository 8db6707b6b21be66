import { success } from '../../shared/schemas/common.ts';
import { SandboxConnection, SandboxPath } from '../../shared/schemas/sandbox.ts';
import { route } from '../http/route.ts';
import { refusalsOf } from '../../shared/sandbox-lifecycle.ts';
import { connectSandbox } from '../services/connect-sandbox.ts';

const connectSandboxRoute = route({
  method: 'post',
  path: '/api/sandboxes/{sid}/connections',
  operationId: 'connectSandbox',
  scope: 'sandbox',
  event: 'sandbox.connected',
  summary: 'Get a short-lived WebSocket URL for the processes of a running sandbox',
  description:
    'Open a WebSocket to the URL within a minute to start, attach to and control processes. The connection outlives the token in the URL.',
  tag: 'Sandboxes',
  params: SandboxPath,
  writesNothing: true,
  replies: { 200: success(SandboxConnection) },
  errors: ['not_found', ...refusalsOf('connect')],
  async handle({ deps, caller, params, note }) {
    note({ sandboxId: params.sid });
    return { status: 200, data: await connectSandbox(deps, caller, params.sid) };
  },
});

export const sandboxConnectionRoutes = [connectSandboxRoute];
