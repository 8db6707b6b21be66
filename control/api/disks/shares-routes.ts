import { DiskPath, success } from '../../../shared/schemas/common.ts';
import { CreateShareUrl, SharePath, ShareUrl } from '../../../shared/schemas/share.ts';
import { route } from '../../http/route.ts';
import { DISK_HOST_ERRORS } from '../../http/route-errors.ts';
import { createShareUrl, openShared, readShareToken } from '../../http/share-links.ts';

const tag = 'Disks';

const createShareUrlRoute = route({
  method: 'post',
  path: '/api/disks/{id}/share',
  operationId: 'createShareUrl',
  scope: 'disk',
  event: 'disk.shared',
  summary: 'Make a link with which anybody can download one file, for a time',
  description:
    'The link is signed and stored nowhere: it ends when it expires, or with the API key that made it.',
  tag,
  params: DiskPath,
  body: CreateShareUrl,
  idempotent: true,
  replies: { 200: success(ShareUrl) },
  errors: ['not_found', ...DISK_HOST_ERRORS],
  async handle({ deps, caller, params, body, requestId, note }) {
    const disk = { caller, diskId: params.id };
    note({ diskId: params.id });
    return { status: 200, data: await createShareUrl(deps, disk, body, { requestId }) };
  },
});

const downloadShared = route({
  method: 'get',
  path: '/api/shared/{token}',
  operationId: 'downloadShared',
  scope: 'public',
  summary: 'Download a shared file, or parts of it; the link is the credential',
  description:
    'Ranges and preconditions work as RFC 9110 says. Content is sent as an attachment, which browsers do not run.',
  tag,
  params: SharePath,
  replies: {},
  files: [200, 206, 304],
  errors: [
    'forbidden',
    'not_found',
    'expired',
    'precondition_failed',
    'range_not_satisfiable',
    'rate_limited',
    ...DISK_HOST_ERRORS,
  ],
  async handle({ deps, params, method, headers, address, requestId, callerGone, note }) {
    const file = readShareToken(deps, params.token);
    note({ diskId: file.diskId });
    const download = {
      method: method === 'HEAD' ? ('HEAD' as const) : ('GET' as const),
      headers,
      address,
      requestId,
      signal: callerGone(),
    };
    return openShared(deps, file, download);
  },
});

export const shareRoutes = [createShareUrlRoute, downloadShared];
