import type { Directory } from '../../../shared/directory/directory.ts';
import { API_LIMITS } from '../limits.ts';
import type { EndedWithKey } from '../../../shared/schemas/api-key.ts';

/** Sandboxes whose ports are read side by side. */
const READ_AT_ONCE = 32;

type Records = Pick<Directory, 'apiKeys' | 'sandboxes' | 'sandboxRoutes' | 'webhooks'>;

/** @returns the ports that nothing but the key exposed, at most `API_LIMITS.endedPortsShownMax` */
async function endPorts(
  { sandboxes, sandboxRoutes }: Records,
  accountId: string,
  keyId: string,
): Promise<EndedWithKey['ports']> {
  const ended: EndedWithKey['ports'] = [];
  const left = (await sandboxes.list(accountId)).values();
  const work = async (): Promise<void> => {
    for (const { id } of left) {
      const ports = await sandboxRoutes.endExposedBy(id, keyId);
      ended.push(...ports.map((port) => ({ sandbox_id: id, port })));
    }
  };
  await Promise.all(Array.from({ length: READ_AT_ONCE }, work));
  return ended.slice(0, API_LIMITS.endedPortsShownMax);
}

/**
 * Deletes an API key, and with it its webhooks and the ports that it made public. After a crash
 * half-way they have ended all the same: readers of both ask whether their key is there.
 * @returns what has ended; undefined when the account has no such key
 */
export async function deleteApiKey(
  directory: Records,
  accountId: string,
  keyId: string,
): Promise<EndedWithKey | undefined> {
  const { apiKeys, webhooks } = directory;
  const own = (await webhooks.list(accountId)).filter((webhook) => webhook.keyId === keyId);
  if (!(await apiKeys.remove(accountId, keyId))) return undefined;
  for (const { id } of own) await webhooks.remove(accountId, id);
  return {
    webhooks: own.map(({ id, url }) => ({ id, url })),
    ports: await endPorts(directory, accountId, keyId),
  };
}
