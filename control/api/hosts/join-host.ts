import { AppError } from '../../../shared/errors.ts';
import { invitationIdOf } from '../../../shared/host-invitation.ts';
import { addressKey } from '../../../shared/http/address-key.ts';
import { DIRECTORY_LIMITS } from '../../../shared/directory/limits.ts';
import type { JoinRequest } from '../../../shared/schemas/host.ts';
import type { Deps } from '../../region/deps.ts';

const SHOWN_ID_LENGTH = 16;

/**
 * Gives a host what it was invited to, once.
 * @throws AppError `rate_limited`, `not_found` when there is no such invitation, `forbidden` when
 *   another host has used it
 */
export async function joinHost(
  { directory: { hostInvitations } }: Deps,
  { proof, nonce, name }: JoinRequest,
  { address, note }: { address: string; note: (fields: Record<string, unknown>) => void },
): Promise<{ readonly sealed: string }> {
  const id = invitationIdOf(proof);
  note({ hostName: name, invitationId: id.slice(0, SHOWN_ID_LENGTH) });
  if (!(await hostInvitations.mayTry(addressKey(address)))) {
    const seconds = DIRECTORY_LIMITS.joinAttemptsWithinMs / 1000;
    throw new AppError('rate_limited', `too many tries from ${address}: wait ${seconds} s`);
  }
  const claimed = await hostInvitations.claim(id, nonce);
  if (typeof claimed === 'object') return claimed;
  if (claimed === 'used') {
    throw new AppError(
      'forbidden',
      'another host has used this token. If it was not yours, end that host and change the secrets; make another token with: scripts/admin host invite',
    );
  }
  throw new AppError(
    'not_found',
    'the token is unknown or has expired: make another with: scripts/admin host invite',
  );
}
