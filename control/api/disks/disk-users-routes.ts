import { AppError } from '../../../shared/errors.ts';
import { DiskPath, Message, success } from '../../../shared/schemas/common.ts';
import {
  AuthorizedUser,
  DiskUserInput,
  DiskUserPath,
  RemoveUserQuery,
} from '../../../shared/schemas/disk-user.ts';
import { presentUser } from './present-disk.ts';
import { route } from '../../http/route.ts';
import { DISK_HOST_ERRORS } from '../../http/route-errors.ts';
import { addDiskUser, removeDiskUser } from './disk-users.ts';

const tag = 'Disk users';

const addUser = route({
  method: 'post',
  path: '/api/disks/{id}/users',
  operationId: 'addDiskUser',
  scope: 'disk',
  event: 'disk.user_added',
  summary: 'Let a user mount the disk',
  description:
    'The disk token of a new token user is in this answer and nowhere else. With it S3 clients reach the disk.',
  tag,
  params: DiskPath,
  body: DiskUserInput,
  idempotent: true,
  replies: { 201: success(AuthorizedUser) },
  errors: ['not_found', ...DISK_HOST_ERRORS],
  async handle({ deps, caller, params, body, requestId, note }) {
    const disk = { accountId: caller.accountId, diskId: params.id, caller };
    const { record, token } = await addDiskUser(deps, disk, body, { requestId });
    note({ userIdentifier: record.identifier });
    return { status: 201, data: presentUser(record, token) };
  },
});

const removeUser = route({
  method: 'delete',
  path: '/api/disks/{id}/users/{userType}',
  operationId: 'removeDiskUser',
  scope: 'disk',
  event: 'disk.user_removed',
  summary: 'Take a user off the disk',
  description: 'Its credentials stop working at once. The user is named by `identifier`.',
  tag,
  params: DiskUserPath,
  query: RemoveUserQuery,
  replies: { 200: success(Message) },
  errors: ['bad_request', 'not_found', ...DISK_HOST_ERRORS],
  async handle({ deps, caller, params, query, requestId, note }) {
    const identifier = query.identifier ?? query.principal;
    if (identifier === undefined) {
      throw new AppError('bad_request', 'identifier is required: it says which user to remove');
    }
    note({ userIdentifier: identifier });
    const disk = { accountId: caller.accountId, diskId: params.id };
    await removeDiskUser(deps, disk, { type: params.userType, identifier }, { requestId });
    return { status: 200, data: { message: 'user removed' } };
  },
});

export const diskUserRoutes = [addUser, removeUser];
