import { AppError } from '../../../shared/errors.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import { parseNetworkPolicy } from '../../../shared/network/parse-policy.ts';
import type { NetworkDecision } from '../../../shared/schemas/network-decision.ts';
import type { ShownNetworkPolicy } from '../../../shared/schemas/network-policy.ts';
import { sha256 } from '../../../shared/secrets.ts';
import type { RequestContext } from '../../region/call-disk-host.ts';
import type { Deps } from '../../region/deps.ts';
import { findSandbox } from '../../region/find-sandbox.ts';
import { callOwner, type SandboxOfAccount } from './sandbox-actions.ts';

/**
 * The policy of a sandbox in any state, without its secrets.
 * @throws AppError `not_found`
 */
export async function getNetworkPolicy(
  deps: Deps,
  { accountId, sandboxId }: SandboxOfAccount,
): Promise<ShownNetworkPolicy> {
  return (await findSandbox(deps, accountId, sandboxId)).network ?? {};
}

/**
 * Replaces the policy of a running sandbox; new connections follow it at once.
 * @returns the policy as it counts now
 * @throws AppError `bad_request`, `not_found`, `sandbox_not_running`, `sandbox_network_conflict`,
 *   `not_enabled`, `unavailable`, `timeout`
 */
export async function setNetworkPolicy(
  deps: Deps,
  ref: SandboxOfAccount,
  input: unknown,
  context: RequestContext,
): Promise<ShownNetworkPolicy> {
  const policy = parseNetworkPolicy(input, 'body');
  const record = await findSandbox(deps, ref.accountId, ref.sandboxId);
  const job = { kind: 'sandbox.setNetwork' as const, payload: { ...ref, policy } };
  return (await callOwner(deps, record, job, context)).result.sandbox.network ?? {};
}

interface DecisionPage {
  readonly decisions: readonly NetworkDecision[];
  readonly nextCursor: string | undefined;
}

/** Newest first; equal times in an order that does not change while pages are read. */
const positionOf = ({ time, count: _count, ...kind }: NetworkDecision): string =>
  `${time} ${sha256(JSON.stringify(kind)).slice(0, 16)}`;

const encode = (position: string): string => Buffer.from(position).toString('base64url');

function decode(cursor: string): string {
  const position = Buffer.from(cursor, 'base64url').toString('utf8');
  if (/^[\d:.TZ-]{24} [0-9a-f]{16}$/u.test(position) && encode(position) === cursor)
    return position;
  throw new AppError('bad_request', 'cursor is not one that this list returned');
}

/**
 * Decisions about the connections of a sandbox. One that is made anew between two pages moves to
 * the front, and is not listed again.
 * @throws AppError `bad_request`, `not_found`, `unavailable`, `timeout`
 */
export async function listDecisions(
  deps: Deps,
  ref: SandboxOfAccount,
  { limit = SCHEMA_LIMITS.pageSizeDefault, cursor }: { limit?: number; cursor?: string },
  context: RequestContext,
): Promise<DecisionPage> {
  const after = cursor === undefined ? undefined : decode(cursor);
  const record = await findSandbox(deps, ref.accountId, ref.sandboxId);
  const job = { kind: 'sandbox.decisions' as const, payload: ref };
  const { decisions } = (await callOwner(deps, record, job, context)).result;
  const left = decisions
    .map((decision) => ({ decision, position: positionOf(decision) }))
    .toSorted((a, b) => (a.position < b.position ? 1 : -1))
    .filter(({ position }) => after === undefined || position < after);
  const page = left.slice(0, Math.min(limit, SCHEMA_LIMITS.pageSizeMax));
  const last = page.at(-1);
  return {
    decisions: page.map(({ decision }) => decision),
    nextCursor: left.length > page.length && last !== undefined ? encode(last.position) : undefined,
  };
}
