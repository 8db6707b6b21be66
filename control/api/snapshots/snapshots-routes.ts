import Type from 'typebox';
import { PageQuery, success, successPage } from '../../../shared/schemas/common.ts';
import { SandboxDeletionFailure, SandboxPath, WaitQuery } from '../../../shared/schemas/sandbox.ts';
import { CreateSnapshot, Snapshot, SnapshotPath } from '../../../shared/schemas/snapshot.ts';
import { presentSnapshot } from './present-snapshot.ts';
import { route } from '../../http/route.ts';
import { SANDBOX_HOST_ERRORS } from '../../http/route-errors.ts';
import { refusalsOf } from '../../../shared/sandbox-lifecycle.ts';
import { findSnapshot } from '../../region/find-snapshot.ts';
import { countOne, createSnapshot, deleteSnapshot, listSnapshots } from './snapshots.ts';

const tag = 'Snapshots';

const createSnapshotRoute = route({
  method: 'post',
  path: '/api/sandboxes/{sid}/snapshots',
  operationId: 'createSnapshot',
  scope: 'sandbox',
  event: 'snapshot.created',
  summary: 'Keep disk and memory of a sandbox as something to create sandboxes from',
  description:
    'The sandbox continues as before. Answered while the snapshot is being made; with `wait`, once it is made or after 20 seconds.',
  tag,
  params: SandboxPath,
  query: WaitQuery,
  body: CreateSnapshot,
  idempotent: true,
  bringsUpSandbox: true,
  replies: { 202: success(Snapshot) },
  errors: [
    'not_found',
    'snapshot_name_conflict',
    'snapshot_limit_reached',
    ...refusalsOf('fork'),
    ...SANDBOX_HOST_ERRORS,
  ],
  async handle({ deps, caller, params, query, body, requestId, note }) {
    note({ sandboxId: params.sid });
    const ref = { accountId: caller.accountId, sandboxId: params.sid };
    const record = await createSnapshot(deps, ref, { ...body, wait: query.wait }, { requestId });
    note({ snapshotId: record.id, hostId: record.hostId });
    return { status: 202, data: presentSnapshot({ record, sandboxCount: 0 }) };
  },
});

const listSnapshotsRoute = route({
  method: 'get',
  path: '/api/snapshots',
  operationId: 'listSnapshots',
  scope: 'read',
  summary: 'List the snapshots of the account, oldest first',
  description: 'Failed ones are listed until they are deleted.',
  tag,
  query: PageQuery,
  replies: { 200: successPage(Type.Array(Snapshot)) },
  errors: ['bad_request'],
  async handle({ deps, caller, query }) {
    const { items, nextCursor } = await listSnapshots(deps, caller.accountId, query);
    return { status: 200, data: items.map(presentSnapshot), nextCursor };
  },
});

const getSnapshot = route({
  method: 'get',
  path: '/api/snapshots/{id}',
  operationId: 'getSnapshot',
  scope: 'read',
  summary: 'Show a snapshot',
  description: 'Its status tells whether sandboxes can be created from it.',
  tag,
  params: SnapshotPath,
  replies: { 200: success(Snapshot) },
  errors: ['not_found'],
  async handle({ deps, caller, params }) {
    const record = await findSnapshot(deps, caller.accountId, params.id);
    return { status: 200, data: presentSnapshot(await countOne(deps, record)) };
  },
});

const deleteSnapshotRoute = route({
  method: 'delete',
  path: '/api/snapshots/{id}',
  operationId: 'deleteSnapshot',
  scope: 'sandbox',
  event: 'snapshot.deleted',
  summary: 'Delete a snapshot that no sandbox stands on',
  description:
    'Sandboxes that were created from it have to be deleted first; the error names them.',
  tag,
  params: SnapshotPath,
  replies: {},
  empty: [204],
  errors: ['not_found', 'snapshot_in_use', 'snapshot_not_ready', ...SANDBOX_HOST_ERRORS],
  failures: { 409: SandboxDeletionFailure },
  async handle({ deps, caller, params, requestId, note }) {
    const record = await findSnapshot(deps, caller.accountId, params.id);
    note({ snapshotId: record.id });
    await deleteSnapshot(deps, record, { requestId });
    return { status: 204 };
  },
});

export const snapshotRoutes = [
  createSnapshotRoute,
  listSnapshotsRoute,
  getSnapshot,
  deleteSnapshotRoute,
];
