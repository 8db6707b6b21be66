import type { DiskEntry } from '../../../shared/directory/disk-record.ts';
import type { Page } from '../../../shared/directory/page.ts';
import {
  BareSuccess,
  DiskPath,
  Message,
  success,
  successPage,
} from '../../../shared/schemas/common.ts';
import {
  AllowedIpsBody,
  AllowedOriginsBody,
  CreateDisk,
  CreatedDisk,
  Delegations,
  Disk,
  DiskListQuery,
  RevokeDelegation,
} from '../../../shared/schemas/disk.ts';
import Type from 'typebox';
import { presentCreatedDisk, presentDisk } from './present-disk.ts';
import { route } from '../../http/route.ts';
import { DISK_HOST_ERRORS } from '../../http/route-errors.ts';
import { setAllowedIps } from './allowed-ips.ts';
import { setAllowedOrigins } from './allowed-origins.ts';
import { createDisk } from './create-disk.ts';
import { deleteDisk } from './delete-disk.ts';
import { listDelegations, revokeDelegation } from './delegations.ts';
import { findDisk } from '../../region/find-disk.ts';

const tag = 'Disks';

const listDisks = route({
  method: 'get',
  path: '/api/disks',
  operationId: 'listDisks',
  scope: 'read',
  summary: 'List the disks of the account, oldest first',
  description: 'Pages are in the order of creation. With `name` the list has that disk or nothing.',
  tag,
  query: DiskListQuery,
  replies: { 200: successPage(Type.Array(Disk)) },
  errors: ['bad_request'],
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
  scope: 'disk',
  event: 'disk.created',
  summary: 'Create a disk, or find the one of that name and configuration',
  description:
    'A call with the name and configuration of a disk that exists answers 200 with that disk, so it can be repeated. The answer to the first one has the token of the default disk user.',
  tag,
  body: CreateDisk,
  idempotent: true,
  replies: { 200: success(CreatedDisk), 201: success(CreatedDisk) },
  errors: [
    'forbidden',
    'disk_conflict',
    'disk_limit_reached',
    'account_limit_reached',
    ...DISK_HOST_ERRORS,
  ],
  async handle({ deps, caller, body, requestId, note, callerGone }) {
    const context = { requestId, signal: callerGone() };
    const { created, disk, tokens } = await createDisk(deps, caller, body, context);
    note({ diskId: disk.record.id });
    return { status: created ? 201 : 200, data: presentCreatedDisk(disk, tokens) };
  },
});

const getDisk = route({
  method: 'get',
  path: '/api/disks/{id}',
  operationId: 'getDisk',
  scope: 'read',
  summary: 'Get a disk',
  description: 'Figures that were never measured are left out.',
  tag,
  params: DiskPath,
  replies: { 200: success(Disk) },
  errors: ['bad_request', 'not_found'],
  async handle({ deps, caller, params }) {
    return { status: 200, data: presentDisk(await findDisk(deps, caller.accountId, params.id)) };
  },
});

const deleteDiskRoute = route({
  method: 'delete',
  path: '/api/disks/{id}',
  operationId: 'deleteDisk',
  scope: 'disk',
  event: 'disk.deleted',
  summary: 'Delete a disk and everything that belongs to it',
  description:
    'Commands that run on the disk are ended, and its contents are gone for good. Refused while a sandbox mounts it.',
  tag,
  params: DiskPath,
  replies: { 200: BareSuccess },
  errors: ['bad_request', 'not_found', 'disk_in_use', ...DISK_HOST_ERRORS],
  async handle({ deps, caller, params, requestId, note }) {
    const disk = { accountId: caller.accountId, diskId: params.id };
    const { unfinished } = await deleteDisk(deps, disk, { requestId });
    if (unfinished !== undefined) note({ unfinished: unfinished.message });
    return { status: 200 };
  },
});

const getAllowedIps = route({
  method: 'get',
  path: '/api/disks/{id}/allowed-ips',
  operationId: 'getAllowedIps',
  scope: 'read',
  summary: 'Addresses from which the disk may be mounted; empty: all',
  description: 'They bind disk users; API keys reach the disk from everywhere.',
  tag,
  params: DiskPath,
  replies: { 200: success(AllowedIpsBody) },
  errors: ['bad_request', 'not_found'],
  async handle({ deps, caller, params }) {
    const { record } = await findDisk(deps, caller.accountId, params.id);
    return { status: 200, data: { allowedIps: record.allowedIps } };
  },
});

const putAllowedIps = route({
  method: 'put',
  path: '/api/disks/{id}/allowed-ips',
  operationId: 'setAllowedIps',
  scope: 'disk',
  event: 'disk.allowed_ips_changed',
  summary: 'Replace the addresses from which the disk may be mounted',
  description: 'The list counts from the next request on. An empty list lifts every restriction.',
  tag,
  params: DiskPath,
  body: AllowedIpsBody,
  replies: { 200: success(AllowedIpsBody) },
  errors: ['not_found', ...DISK_HOST_ERRORS],
  async handle({ deps, caller, params, body, requestId }) {
    const disk = { accountId: caller.accountId, diskId: params.id };
    const allowedIps = await setAllowedIps(deps, disk, body.allowedIps, { requestId });
    return { status: 200, data: { allowedIps } };
  },
});

const getAllowedOrigins = route({
  method: 'get',
  path: '/api/disks/{id}/allowed-origins',
  operationId: 'getAllowedOrigins',
  scope: 'read',
  summary: 'Origins whose pages may read objects and shared files; empty: none',
  description: 'They concern browsers alone, which ask for CORS; they give nobody rights.',
  tag,
  params: DiskPath,
  replies: { 200: success(AllowedOriginsBody) },
  errors: ['bad_request', 'not_found'],
  async handle({ deps, caller, params }) {
    const { record } = await findDisk(deps, caller.accountId, params.id);
    return { status: 200, data: { allowedOrigins: record.allowedOrigins } };
  },
});

const putAllowedOrigins = route({
  method: 'put',
  path: '/api/disks/{id}/allowed-origins',
  operationId: 'setAllowedOrigins',
  scope: 'disk',
  event: 'disk.allowed_origins_changed',
  summary: 'Replace the origins whose pages may read objects and shared files',
  description:
    'The list counts from the next request on; browsers may remember preflights for ten minutes.',
  tag,
  params: DiskPath,
  body: AllowedOriginsBody,
  replies: { 200: success(AllowedOriginsBody) },
  errors: ['not_found', ...DISK_HOST_ERRORS],
  async handle({ deps, caller, params, body, requestId }) {
    const disk = { accountId: caller.accountId, diskId: params.id };
    const { allowedOrigins: list } = body;
    const allowedOrigins = await setAllowedOrigins(deps, disk, list, { requestId });
    return { status: 200, data: { allowedOrigins } };
  },
});

const listDelegationsRoute = route({
  method: 'get',
  path: '/api/disks/{id}/delegations',
  operationId: 'listDelegations',
  scope: 'read',
  summary: 'Exclusive write leases that running commands hold or await on the disk',
  description: 'Commands take such leases with `checkoutPaths` or `queueMs`.',
  tag,
  params: DiskPath,
  replies: { 200: success(Delegations) },
  errors: ['bad_request', 'not_found', ...DISK_HOST_ERRORS],
  async handle({ deps, caller, params, requestId }) {
    const disk = { accountId: caller.accountId, diskId: params.id };
    return { status: 200, data: { delegations: await listDelegations(deps, disk, { requestId }) } };
  },
});

const revokeDelegationRoute = route({
  method: 'post',
  path: '/api/disks/{id}/revoke-delegation',
  operationId: 'revokeDelegation',
  scope: 'disk',
  event: 'disk.delegation_revoked',
  summary: 'Take a write lease away; the command that holds it is ended',
  description:
    'A command that waits for the lease gives up; one that holds it answers `delegation_revoked`.',
  tag,
  params: DiskPath,
  body: RevokeDelegation,
  replies: { 200: success(Message) },
  errors: ['not_found', ...DISK_HOST_ERRORS],
  async handle({ deps, caller, params, body, requestId }) {
    const disk = { accountId: caller.accountId, diskId: params.id };
    await revokeDelegation(deps, disk, body, { requestId });
    return { status: 200, data: { message: 'delegation revoked' } };
  },
});

export const diskRoutes = [
  listDisks,
  createDiskRoute,
  getDisk,
  deleteDiskRoute,
  getAllowedIps,
  putAllowedIps,
  getAllowedOrigins,
  putAllowedOrigins,
  listDelegationsRoute,
  revokeDelegationRoute,
];
