import { AppError } from '../../../shared/errors.ts';
import { success } from '../../../shared/schemas/common.ts';
import { DiskMount, BucketCredentials, MountPath } from '../../../shared/schemas/disk-bucket.ts';
import { presentMounts } from './present-disk.ts';
import { route } from '../../http/route.ts';
import { DISK_HOST_ERRORS } from '../../http/route-errors.ts';
import { replaceCredentials } from './buckets.ts';

const setCredentials = route({
  method: 'post',
  path: '/api/disks/{id}/mounts/{mountId}/credentials',
  operationId: 'setMountCredentials',
  scope: 'disk',
  event: 'disk.credentials_changed',
  summary: 'Replace the credentials of the object storage behind a disk',
  description:
    'A host tries them before the answer: `connectionStatus` says what came of it. All of the former credentials are forgotten.',
  tag: 'Disks',
  params: MountPath,
  body: BucketCredentials,
  replies: { 200: success(DiskMount) },
  errors: ['not_found', ...DISK_HOST_ERRORS],
  async handle({ deps, caller, params, body, requestId }) {
    const ref = { accountId: caller.accountId, diskId: params.id, mountId: params.mountId };
    const [mount] = presentMounts(await replaceCredentials(deps, ref, body, { requestId }));
    if (mount === undefined) throw new AppError('not_found', `disk ${params.id} has no mount`);
    return { status: 200, data: mount };
  },
});

export const diskMountRoutes = [setCredentials];
