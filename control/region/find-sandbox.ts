import { AppError } from '../../shared/errors.ts';
import { sandboxIdPattern } from '../../shared/ids.ts';
import type { SandboxRecord } from '../../shared/schemas/sandbox-record.ts';
import type { Deps } from './deps.ts';

/** Names a sandbox or a command in one; such ids are UUIDs in lower case. */
export const isUuid = (text: string): boolean => new RegExp(sandboxIdPattern, 'u').test(text);

/**
 * Finds a sandbox of the account, as its host last published it.
 * @throws AppError `not_found`, the same for a missing one, another account's and a malformed id
 */
export async function findSandbox(
  { directory }: Deps,
  accountId: string,
  sandboxId: string,
): Promise<SandboxRecord> {
  const record = isUuid(sandboxId)
    ? await directory.sandboxes.get(accountId, sandboxId)
    : undefined;
  if (record === undefined) throw new AppError('not_found', `sandbox ${sandboxId} not found`);
  return record;
}

/** @throws AppError `not_found` */
export async function findSandboxByName(
  { directory }: Deps,
  accountId: string,
  name: string,
): Promise<SandboxRecord> {
  const record = await directory.sandboxes.find(accountId, name);
  if (record === undefined) throw new AppError('not_found', `there is no sandbox named ${name}`);
  return record;
}
