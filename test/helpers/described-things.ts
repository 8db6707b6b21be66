/*
 * Creates a thing of each kind that requests can be about, so that not everything is answered with
 * 404.
 */
import { readFile } from 'node:fs/promises';
import type { ApiClient } from './api.ts';
import { createDisk, exec } from './disks.ts';
import { imageOf, layerOf, type TestRegistry } from './registry.ts';
import { createSandbox, execIn, sandboxPath } from './sandboxes.ts';
import type { KnownValues } from './schema-values.ts';
import { share } from './shares.ts';
import { waitFor } from './wait.ts';

/** Values of fields by operation; those of `*` by the name of the field alone. */
export type KnownThings = (operationId: string) => KnownValues;

const idsOf = async (
  api: ApiClient,
  path: string,
  { body, field = 'id', count = 1 }: { body: object; field?: string; count?: number },
): Promise<string[]> => {
  const ids: string[] = [];
  for (let i = 0; i < count; i += 1) {
    const text = JSON.stringify(body).replaceAll('#', String(i));
    const created = await api.data<Record<string, string>>('POST', path, text);
    ids.push(created[field] ?? '');
  }
  return ids;
};

async function pushImage(api: ApiClient, registry: TestRegistry): Promise<[string, string]> {
  const system = layerOf([
    { name: 'bin/', type: 'directory' },
    { name: 'bin/busybox', mode: 0o755, content: await readFile('/bin/busybox') },
    { name: 'bin/sh', type: 'link', target: 'bin/busybox' },
  ]);
  const source = await registry.push('system', 'one', imageOf([system]));
  const [id = ''] = await idsOf(api, '/api/images', { body: { source }, field: 'image_id' });
  await waitFor('the image', async () => {
    const image = await api.data<{ status: string }>('GET', `/api/images/${id}`);
    return image.status !== 'building';
  });
  return [id, source];
}

async function aboutDisks(api: ApiClient) {
  const { id } = await createDisk(api);
  await exec(api, id, 'mkdir dir; echo needle > dir/file');
  const link = await share(api, id, 'dir/file');
  const users = `/api/disks/${id}/users`;
  const user = { type: 'token', nickname: 'n#' };
  const identifiers = await idsOf(api, users, { body: user, field: 'identifier', count: 4 });
  return { id, identifiers, token: link.slice(link.lastIndexOf('/') + 1) };
}

async function aboutSandboxes(api: ApiClient) {
  const { sandbox_id: sid } = await createSandbox(api, { mem_size_mib: 256 });
  const at = sandboxPath(sid);
  const { exec_id: eid } = await execIn(api, sid, 'echo out');
  await api.data('PUT', `${at}/ports/8080`);
  const tokens = await idsOf(api, `${at}/port-tokens`, { body: { port: 8080 }, count: 2 });
  const made = { body: { name: 'kept#' }, field: 'snapshot_id', count: 2 };
  const snapshots = await idsOf(api, `${at}/snapshots`, made);
  for (const id of snapshots) {
    await waitFor('the snapshot', async () => {
      const snapshot = await api.data<{ status: string }>('GET', `/api/snapshots/${id}`);
      return snapshot.status === 'ready';
    });
  }
  return { sid, eid, tokens, snapshots };
}

/** Creates them. What operations remove, they have to themselves. */
export async function createThings(api: ApiClient, registry: TestRegistry): Promise<KnownThings> {
  const disk = await aboutDisks(api);
  const { sid, eid, tokens, snapshots } = await aboutSandboxes(api);
  const [imageId, source] = await pushImage(api, registry);
  const removable = await createDisk(api);
  const keys = await idsOf(api, '/api/tokens', { body: { name: 'k' } });
  const everywhere: KnownValues = {
    id: [disk.id],
    disk: [disk.id],
    disk_id: [disk.id],
    filesystem: [disk.id],
    subdirectory: ['dir'],
    checkoutPaths: [['dir'], ['dir/file']],
    token: [disk.token, 'no-token'],
    sid: [sid],
    eid: [eid],
    tokenId: tokens.slice(0, 1),
    image_id: [imageId],
    // No other registry is asked for anything.
    source: [source, `${registry.name}/missing`],
    base_image: ['default', source],
    snapshot: [...snapshots.slice(0, 1), 'no-such-snapshot'],
  };
  const ofFiles: KnownValues = {
    path: ['/tmp/file', '/tmp', '/tmp/missing/file'],
    from: ['/tmp/file'],
    to: ['/tmp/moved', '/tmp/file'],
  };
  const own: Readonly<Record<string, KnownValues>> = {
    // Buckets elsewhere are left alone; test/system has its own tests of them.
    createDisk: { mounts: [[]] },
    deleteDisk: { id: [removable.id] },
    removeDiskUser: { identifier: disk.identifiers },
    deleteApiKey: { id: keys },
    createWebhook: { url: ['https://192.0.2.1/'] },
    getSnapshot: { id: snapshots.slice(0, 1) },
    deleteSnapshot: { id: snapshots.slice(1) },
    deleteSandboxPortToken: { tokenId: tokens.slice(1) },
  };
  return (operationId) => ({
    ...everywhere,
    ...(/Sandbox(?:File|Directory)/u.test(operationId) ? ofFiles : {}),
    // Not the one that all of this runs on.
    ...(operationId.endsWith('Host') ? { id: ['host-0123456789ab'] } : {}),
    ...own[operationId],
  });
}
