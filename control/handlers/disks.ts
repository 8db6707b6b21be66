import type { DiskEntry } from '../../shared/directory/disks.ts';
import type { Page } from '../../shared/directory/page.ts';
import { AppError } from '../../shared/errors.ts';
import {
  BareSuccess,
  DiskPath,
  Message,
  success,
  successPage,
} from '../../shared/schemas/common.ts';
import {
  AllowedIpsBody,
  CreateDisk,
  CreatedDisk,
  Delegations,
  Disk,
  DiskListQuery,
  RevokeDelegation,
} from '../../shared/schemas/disk.ts';
import Type from 'typebox';
import { presentCreatedDisk, presentDisk } from '../presenters.ts';
import { route } from '../route.ts';
import { setAllowedIps } from '../services/allowed-ips.ts';
import { createDisk } from '../services/create-disk.ts';
import { deleteDisk } from '../services/delete-disk.ts';
import { findDisk } from '../services/find-disk.ts';

const tag = 'Disks';

const listDisks = route({
  method: 'get',
  path: '/api/disks',
  operationId: 'listDisks',
  summary: 'List the disks of the account, oldest first',
  tag,
  query: DiskListQuery,
  replies: { 200: successPage(Type.Array(Disk)) },
  errors: [400],
  async handle({ deps, caller, query }) {
    const { disks } = deps.directory;
    if (query.name === undefined) {
      const page: Page<DiskEntry> = await disks.list(caller.accountId, query);
      return { status: 200, data: page.items.map(presentDisk), nextCursor: page.nextCursor };
    }
    const found = await disks.findByName(caller.accountId, query.name);
    return { status: 200, data: found === undefined ? [] : [presentDisk(found)] };
  },
});

const createDiskRoute = route({
  method: 'post',
  path: '/api/disks',
  operationId: 'createDisk',
  summary: 'Create a disk, or find the one of that name and configuration',
  tag,
  body: CreateDisk,
  replies: { 200: success(CreatedDisk), 201: success(CreatedDisk) },
  errors: [400, 403, 409, 413],
  async handle({ deps, caller, body, requestId, note }) {
    const { created, disk, tokens } = await createDisk(deps, caller, body, { requestId });
    note({ diskId: disk.record.id });
    return { status: created ? 201 : 200, data: presentCreatedDisk(disk, tokens) };
  },
});

const getDisk = route({
  method: 'get',
  path: '/api/disks/{id}',
  operationId: 'getDisk',
  summary: 'Get a disk',
  tag,
  params: DiskPath,
  replies: { 200: success(Disk) },
  errors: [400, 404],
  async handle({ deps, caller, params }) {
    return { status: 200, data: presentDisk(await findDisk(deps, caller.accountId, params.id)) };
  },
});

const deleteDiskRoute = route({
  method: 'delete',
  path: '/api/disks/{id}',
  operationId: 'deleteDisk',
  summary: 'Delete a disk and everything that belongs to it',
  tag,
  params: DiskPath,
  replies: { 200: BareSuccess },
  errors: [400, 404],
  async handle({ deps, caller, params, requestId }) {
    await deleteDisk(deps, { accountId: caller.accountId, diskId: params.id }, { requestId });
    return { status: 200 };
  },
});

const getAllowedIps = route({
  method: 'get',
  path: '/api/disks/{id}/allowed-ips',
  operationId: 'getAllowedIps',
  summary: 'Addresses from which the disk may be mounted; empty: all',
  tag,
  params: DiskPath,
  replies: { 200: success(AllowedIpsBody) },
  errors: [400, 404],
  async handle({ deps, caller, params }) {
    const { record } = await findDisk(deps, caller.accountId, params.id);
    return { status: 200, data: { allowedIps: record.allowedIps } };
  },
});

const putAllowedIps = route({
  method: 'put',
  path: '/api/disks/{id}/allowed-ips',
  operationId: 'setAllowedIps',
  summary: 'Replace the addresses from which the disk may be mounted',
  tag,
  params: DiskPath,
  body: AllowedIpsBody,
  replies: { 200: success(AllowedIpsBody) },
  errors: [400, 404, 413],
  async handle({ deps, caller, params, body, requestId }) {
    const disk = { accountId: caller.accountId, diskId: params.id };
    const allowedIps = await setAllowedIps(deps, disk, body.allowedIps, { requestId });
    return { status: 200, data: { allowedIps } };
  },
});

const listDelegations = route({
  method: 'get',
  path: '/api/disks/{id}/delegations',
  operationId: 'listDelegations',
  summary: 'Write leases that clients hold on the disk',
  tag,
  params: DiskPath,
  replies: { 200: success(Delegations) },
  errors: [400, 404],
  async handle({ deps, caller, params }) {
    await findDisk(deps, caller.accountId, params.id);
    // Nothing can hold one yet: several disks in one exec, which can, are not built.
    return { status: 200, data: { delegations: [] } };
  },
});

const revokeDelegation = route({
  method: 'post',
  path: '/api/disks/{id}/revoke-delegation',
  operationId: 'revokeDelegation',
  summary: 'Take a write lease away from its client',
  tag,
  params: DiskPath,
  body: RevokeDelegation,
  replies: { 200: success(Message) },
  errors: [400, 404, 413],
  async handle({ deps, caller, params, body }) {
    await findDisk(deps, caller.accountId, params.id);
    throw new AppError('not_found', `client ${body.clientId} has no delegation on this inode`);
  },
});

export const diskRoutes = [
  listDisks,
  createDiskRoute,
  getDisk,
  deleteDiskRoute,
  getAllowedIps,
  putAllowedIps,
  listDelegations,
  revokeDelegation,
];
