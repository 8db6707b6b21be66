import type { ApiKeyRecord } from '../../../shared/directory/api-keys.ts';
import type { ApiKey } from '../../../shared/schemas/api-key.ts';

export function presentApiKey({
  accountId: _account,
  organization: _organization,
  ...key
}: ApiKeyRecord): ApiKey {
  return key;
}
