import { type Caller, endWithKey } from '../../../shared/directory/api-keys.ts';
import { AppError } from '../../../shared/errors.ts';
import type { PortToken as PortTokenRecord } from '../../../shared/directory/port-tokens.ts';
import type { PageRequest } from '../../../shared/directory/page.ts';
import { ingressHostname } from '../../../shared/ingress-hostname.ts';
import { DIRECTORY_LIMITS } from '../../../shared/directory/limits.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import type {
  CreatePortToken,
  PortToken,
  SandboxPort,
} from '../../../shared/schemas/sandbox-port.ts';
import type { SandboxRecord } from '../../../shared/schemas/sandbox-record.ts';
import { parseTtl } from '../../http/credential-ends.ts';
import type { Deps } from '../../region/deps.ts';
import { findSandbox } from '../../region/find-sandbox.ts';
import type { SandboxOfAccount } from './sandbox-actions.ts';

const TOKEN_ID = /^[0-9a-f]{64}$/u;

/** Only after Redis lost its data and until the owner has published everything again. */
const notAnnounced = (sandboxId: string): AppError =>
  new AppError('unavailable', `sandbox ${sandboxId} is not announced by its host yet; try again`);

const portAt = ({ config }: Deps, sandboxId: string, port: number): SandboxPort => ({
  port,
  hostname: ingressHostname(port, sandboxId, config.ingressZone),
});

/** The ports that were exposed through the API, in ascending order. @throws AppError `not_found` */
export async function listPorts(deps: Deps, ref: SandboxOfAccount): Promise<SandboxPort[]> {
  const { id } = await findSandbox(deps, ref.accountId, ref.sandboxId);
  const ports = await deps.directory.sandboxRoutes.exposedPorts(id);
  return ports.map((port) => portAt(deps, id, port));
}

/**
 * Makes a port public until the caller's key ends. Idempotent.
 * @throws AppError `not_found`, `bad_request` when the sandbox has as many as it may, `unavailable`
 */
export async function exposePort(
  deps: Deps,
  { accountId, keyId }: Caller,
  sandboxId: string,
  port: number,
): Promise<{ readonly isNew: boolean; readonly exposed: SandboxPort }> {
  const { id } = await findSandbox(deps, accountId, sandboxId);
  const result = await deps.directory.sandboxRoutes.expose(id, port, keyId);
  if (result === 'missing') throw notAnnounced(id);
  if (result === 'limit') {
    const message = `the sandbox exposes ${SCHEMA_LIMITS.portsPerSandboxMax} ports; delete one first`;
    throw new AppError('bad_request', message);
  }
  return { isNew: result === 'added', exposed: portAt(deps, id, port) };
}

/** Idempotent. A service that publishes the port keeps it public. @throws AppError `not_found` */
export async function unexposePort(deps: Deps, ref: SandboxOfAccount, port: number): Promise<void> {
  const { id } = await findSandbox(deps, ref.accountId, ref.sandboxId);
  await deps.directory.sandboxRoutes.unexpose(id, port);
}

/** The ports that services of the sandbox were found to publish. */
export async function endpointsOf(
  deps: Deps,
  { id, config }: SandboxRecord,
): Promise<SandboxPort[]> {
  if (config.enableServiceIngress !== true) return [];
  const ports = await deps.directory.sandboxRoutes.servicePorts(id);
  return ports.map((port) => portAt(deps, id, port));
}

function presentToken(deps: Deps, sandboxId: string, record: PortTokenRecord): PortToken {
  const { id, port, createdAt, expiresAt } = record;
  return {
    ...{ id, port, created_at: createdAt },
    ...(expiresAt === undefined ? {} : { expires_at: expiresAt }),
    hostname: portAt(deps, sandboxId, port).hostname,
  };
}

/**
 * Creates a token that opens a port of a sandbox, no longer than the caller's key lasts.
 * @throws AppError `not_found`, `bad_request` for the ttl or too many tokens, `unavailable`
 */
export async function createPortToken(
  deps: Deps,
  ref: SandboxOfAccount,
  { port, ttl }: CreatePortToken,
  caller: Caller,
): Promise<PortToken & { token: string }> {
  const wantedMs = ttl === undefined ? undefined : parseTtl(ttl);
  const now = Date.now();
  const end = endWithKey(caller, wantedMs === undefined ? undefined : now + wantedMs);
  const ttlMs = end === undefined ? undefined : end - now;
  const { id } = await findSandbox(deps, ref.accountId, ref.sandboxId);
  const created = await deps.directory.portTokens.create(id, { port, ttlMs });
  if (created === 'missing') throw notAnnounced(id);
  if (created === 'limit') {
    const message = `the sandbox has ${DIRECTORY_LIMITS.portTokensPerSandboxMax} port tokens; delete one first`;
    throw new AppError('bad_request', message);
  }
  return { ...presentToken(deps, id, created.record), token: created.token };
}

/** Those that have not expired, oldest first. @throws AppError `not_found`, `bad_request` */
export async function listPortTokens(
  deps: Deps,
  ref: SandboxOfAccount,
  request: PageRequest,
): Promise<{ readonly tokens: PortToken[]; readonly nextCursor: string | undefined }> {
  const { id } = await findSandbox(deps, ref.accountId, ref.sandboxId);
  // No client of these lists expects all of it without a limit.
  const limit = request.limit ?? SCHEMA_LIMITS.pageSizeDefault;
  const page = await deps.directory.portTokens.list(id, { ...request, limit });
  const tokens = page.items.map((record) => presentToken(deps, id, record));
  return { tokens, nextCursor: page.nextCursor };
}

const noToken = (tokenId: string): AppError =>
  new AppError('not_found', `port token ${tokenId} not found`);

/** @throws AppError `not_found`, also for a token that has expired */
export async function getPortToken(
  deps: Deps,
  ref: SandboxOfAccount,
  tokenId: string,
): Promise<PortToken> {
  const { id } = await findSandbox(deps, ref.accountId, ref.sandboxId);
  const { portTokens } = deps.directory;
  const record = TOKEN_ID.test(tokenId) ? await portTokens.get(id, tokenId) : undefined;
  if (record === undefined) throw noToken(tokenId);
  return presentToken(deps, id, record);
}

/** Revokes a token: the next request with it is refused. @throws AppError `not_found` */
export async function deletePortToken(
  deps: Deps,
  ref: SandboxOfAccount,
  tokenId: string,
): Promise<void> {
  const { id } = await findSandbox(deps, ref.accountId, ref.sandboxId);
  const isRemoved = TOKEN_ID.test(tokenId) && (await deps.directory.portTokens.remove(id, tokenId));
  if (!isRemoved) throw noToken(tokenId);
}
