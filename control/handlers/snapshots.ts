import Type from 'typebox';
import { PageQuery, success, successPage } from '../../shared/schemas/common.ts';
import { SandboxDeletionFailure, SandboxPath, WaitQuery } from '../../shared/schemas/sandbox.ts';
import { CreateSnapshot, Snapshot, SnapshotPath } from '../../shared/schemas/snapshot.ts';
import { presentSnapshot } from '../http/present-snapshot.ts';
import { route } from '../http/route.ts';
import { findSnapshot } from '../services/find-snapshot.ts';
import { countOne, createSnapshot, deleteSnapshot, listSnapshots } from '../services/snapshots.ts';

const tag = 'Snapshots';

const createSnapshotRoute = route({
  method: 'post',
  path: '/api/sandboxes/{sid}/snapshots',
  operationId: 'createSnapshot',
  summary: 'Keep disk and memory of a sandbox as something to create sandboxes from',
  tag,
  params: SandboxPath,
  query: WaitQuery,
  body: CreateSnapshot,
  idempotent: true,
  bringsUpSandbox: true,
  replies: { 202: success(Snapshot) },
  errors: [400, 404, 409, 413, 504],
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
  summary: 'List the snapshots of the account, oldest first',
  tag,
  query: PageQuery,
  replies: { 200: successPage(Type.Array(Snapshot)) },
  errors: [400],
  async handle({ deps, caller, query }) {
    const { items, nextCursor } = await listSnapshots(deps, caller.accountId, query);
    return { status: 200, data: items.map(presentSnapshot), nextCursor };
  },
});

const getSnapshot = route({
  method: 'get',
  path: '/api/snapshots/{id}',
  operationId: 'getSnapshot',
  summary: 'Show a snapshot',
  tag,
  params: SnapshotPath,
  replies: { 200: success(Snapshot) },
  errors: [404],
  async handle({ deps, caller, params }) {
    const record = await findSnapshot(deps, caller.accountId, params.id);
    return { status: 200, data: presentSnapshot(await countOne(deps, record)) };
  },
});

const deleteSnapshotRoute = route({
  method: 'delete',
  path: '/api/snapshots/{id}',
  operationId: 'deleteSnapshot',
  summary: 'Delete a snapshot that no sandbox stands on',
  tag,
  params: SnapshotPath,
  replies: {},
  empty: [204],
  errors: [404, 409, 504],
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
