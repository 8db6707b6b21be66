import type { NamedSandbox } from '../../../shared/directory/sandboxes.ts';
import type { Share } from '../../../shared/directory/named-records.ts';
import { AppError } from '../../../shared/errors.ts';
import { API_LIMITS } from '../limits.ts';
import { DIRECTORY_LIMITS } from '../../../shared/directory/limits.ts';
import { claimName } from '../../region/claim-name.ts';
import { limitReached } from '../../http/account-limits.ts';
import type { Deps } from '../../region/deps.ts';
import { beingUndone } from '../../region/discard-on-host.ts';
import { randomName } from './random-name.ts';

/** How many random names are tried when the account already has them. */
const RANDOM_NAMES_MAX = 5;

/** A sandbox to be created; without a name it gets a random one. */
export interface UnnamedSandbox extends Omit<NamedSandbox, 'name'> {
  readonly name: string | undefined;
  /** Its part of the account's limits. */
  readonly share: Share;
}

/**
 * Reserves a sandbox's name, and its share of the account's limits, for a limited time; the host
 * that creates the sandbox confirms both. Both are released when `begin` fails.
 * @throws AppError `sandbox_name_conflict`, `sandbox_limit_reached`, `account_limit_reached`,
 *   `unavailable` while another call creates one of this name or a host removes a failed creation
 *   of it, and what `begin` throws
 */
export async function withClaimedName<T>(
  deps: Deps,
  sandbox: UnnamedSandbox,
  begin: (name: string) => Promise<T>,
): Promise<T> {
  const named = await claimFor(deps, sandbox);
  try {
    return await begin(named.name);
  } catch (error) {
    // If this fails as well, the reservation expires.
    await deps.directory.sandboxes.releaseClaim(named).catch(() => undefined);
    throw error;
  }
}

async function claimFor(
  { directory }: Deps,
  { accountId, sandboxId, name: given, share }: UnnamedSandbox,
): Promise<NamedSandbox> {
  for (let tries = 1; ; tries += 1) {
    const named = { accountId, sandboxId, name: given ?? randomName() };
    const result = await claimName(named.name, () =>
      directory.sandboxes.claim(named, API_LIMITS.sandboxClaimMs, share),
    );
    if (result === 'claimed') return named;
    if (result === 'limit') {
      throw new AppError(
        'sandbox_limit_reached',
        `the account has ${DIRECTORY_LIMITS.sandboxesPerAccountMax} sandboxes; delete one first`,
      );
    }
    if (typeof result === 'object') throw limitReached(result);
    if (given !== undefined && (await directory.sandboxes.isBeingUndone(accountId, given))) {
      throw beingUndone(given);
    }
    if (given !== undefined || tries === RANDOM_NAMES_MAX) {
      throw new AppError('sandbox_name_conflict', `a sandbox named ${named.name} exists`);
    }
  }
}
