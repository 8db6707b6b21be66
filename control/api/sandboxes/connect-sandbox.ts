import { type Caller, endWithKey } from '../../../shared/directory/api-keys.ts';
import { AppError } from '../../../shared/errors.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { explainRefusal, verdictOn } from '../../../shared/sandbox-lifecycle.ts';
import type { SandboxConnection } from '../../../shared/schemas/sandbox.ts';
import type { SandboxRecord } from '../../../shared/schemas/sandbox-record.ts';
import type { Deps } from '../../region/deps.ts';
import { findOwner } from './sandbox-actions.ts';

/**
 * Where a WebSocket for a sandbox's processes is opened. The scheme follows that of the host's
 * public URL, so a proxy that ends TLS in front of the agent is reached by `wss:`. The path cannot
 * be that of an object, whose first segment is a disk id (`dsk-…`).
 * @param publicUrl of the host (AGENT_PUBLIC_URL), possibly with a path, which stays in front
 */
export function connectionUrl(publicUrl: string, sandboxId: string, token: string): string {
  const base = publicUrl.replace(/^http/u, 'ws').replace(/\/+$/u, '');
  return `${base}/sandboxes/${sandboxId}/connection?token=${token}`;
}

/**
 * Signs a URL with which processes of a running sandbox are reached at its host, until the URL
 * expires, any number of times. Connections last no longer than the caller's key. Asks nobody: the
 * host verifies the URL and the state by itself.
 * @param record as its host last published it
 * @throws AppError `sandbox_not_running`; `unavailable` while the host cannot be reached
 */
export async function connectSandbox(
  deps: Deps,
  caller: Caller,
  record: SandboxRecord,
): Promise<SandboxConnection> {
  const { accountId, endsAt } = caller;
  const sandboxId = record.id;
  const verdict = verdictOn(record.state, 'connect');
  if (verdict.kind === 'refuse') {
    throw new AppError(verdict.code, explainRefusal(record.state, 'connect'));
  }
  const { hostId, publicUrl } = await findOwner(deps, record);
  const now = Date.now();
  const expiresAt = endWithKey(caller, now + LIMITS.connectionTokenTtlMs) ?? now;
  const sessionEnd = endsAt === undefined ? {} : { sessionEndsAt: endsAt };
  const claims = { sandboxId, accountId, hostId, expiresAt, ...sessionEnd };
  const token = deps.connections.sign(claims);
  return {
    url: connectionUrl(publicUrl, sandboxId, token),
    expires_at: new Date(expiresAt).toISOString(),
  };
}
