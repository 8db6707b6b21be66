/* Commands of scripts/admin for accounts and their keys. */
import { deleteApiKey } from '../control/api/accounts/delete-api-key.ts';
import type { AccountLimit } from '../shared/directory/account-limits.ts';
import type { ApiKeyRecord } from '../shared/directory/api-keys.ts';
import type { Directory } from '../shared/directory/directory.ts';
import { AppError } from '../shared/errors.ts';
import { newEventId } from '../shared/ids.ts';
import type { KeyScope } from '../shared/key-scopes.ts';
import type { ActivityEvent } from '../shared/schemas/activity.ts';

export async function findAccount(directory: Directory, idOrName: string) {
  const accounts = await directory.accounts.list();
  const account = accounts.find(({ id, name }) => id === idOrName || name === idOrName);
  if (account === undefined) {
    throw new AppError('not_found', `there is no account ${idOrName}; see: account list`);
  }
  return account;
}

export async function allKeys(directory: Directory, accountId: string): Promise<ApiKeyRecord[]> {
  const keys: ApiKeyRecord[] = [];
  let cursor: string | undefined;
  do {
    const page = await directory.apiKeys.list(accountId, { limit: 100, cursor });
    keys.push(...page.items);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return keys;
}

/** In the activity of the account, as of no key of it. */
async function noteChange(
  { activity }: Directory,
  accountId: string,
  { eventType, details }: Pick<ActivityEvent, 'eventType' | 'details'>,
): Promise<void> {
  await activity.record({
    eventId: newEventId(),
    accountId,
    eventType,
    level: 'info',
    createdAt: new Date().toISOString(),
    details: { ...details, outcome: 'done', actor: 'operator' },
  });
}

export interface KeyOptions {
  readonly name: string;
  readonly scope?: KeyScope[];
  readonly expiresAt?: string;
}

export async function createKey(
  directory: Directory,
  account: string,
  { name, scope: scopes, expiresAt }: KeyOptions,
): Promise<object> {
  const owner = await findAccount(directory, account);
  const input = { name, scopes, expiresAt };
  const { record, token } = await directory.apiKeys.create(owner, input);
  const { id } = record;
  await noteChange(directory, owner.id, {
    eventType: 'key.created',
    details: { operation: 'key create', apiKeyId: id },
  });
  return {
    id,
    name,
    scopes: record.scopes,
    ...(expiresAt === undefined ? {} : { expiresAt }),
    token,
  };
}

export async function deleteKey(
  directory: Directory,
  account: string,
  keyId: string,
): Promise<object> {
  const { id } = await findAccount(directory, account);
  const ended = await deleteApiKey(directory, id, keyId);
  if (ended === undefined) {
    throw new AppError('not_found', 'the account has no such key; see: key list');
  }
  await noteChange(directory, id, {
    eventType: 'key.deleted',
    details: { operation: 'key delete', params: { id: keyId } },
  });
  return { deleted: keyId, ended };
}

type LimitChanges = Readonly<Partial<Record<AccountLimit, number | null>>>;

/** @param changes none: only shows the limits */
export async function setLimits(
  directory: Directory,
  account: string,
  changes: LimitChanges,
): Promise<object> {
  const { id } = await findAccount(directory, account);
  if (Object.keys(changes).length > 0) {
    await directory.accountLimits.change(id, changes);
    await noteChange(directory, id, {
      eventType: 'account.limits_changed',
      details: { operation: 'account limits', changes },
    });
  }
  return { id, limits: await directory.accountLimits.get(id) };
}
