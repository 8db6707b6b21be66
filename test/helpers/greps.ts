import type { GrepResult } from '../../shared/schemas/grep.ts';
import type { ApiBody, ApiClient, ApiReply } from './api.ts';

export const postGrep = (
  api: ApiClient,
  diskId: string,
  input: Record<string, unknown>,
  signal?: AbortSignal,
): Promise<ApiReply<ApiBody>> =>
  api.call('POST', `/api/disks/${diskId}/grep`, { directory: '', ...input }, {}, signal);

export const grep = (
  api: ApiClient,
  diskId: string,
  input: Record<string, unknown>,
): Promise<GrepResult> =>
  api.data('POST', `/api/disks/${diskId}/grep`, { directory: '', ...input });
