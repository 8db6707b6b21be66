/* The changes that need something in a state of its own, each made once. */
import assert from 'node:assert';
import { invitationIdOf } from '../../shared/host-invitation.ts';
import { randomSecret } from '../../shared/secrets.ts';
import type { ApiClient } from './api.ts';
import { createBucketDisk, readMount } from './buckets.ts';
import { createDisk, exec, newName } from './disks.ts';
import { hostIdOf } from './host.ts';
import { createSandbox, execIn, removeSandbox, sandboxPath } from './sandboxes.ts';
import type { Stack } from './stack.ts';
import { newDiskUser } from './tools.ts';
import { waitFor } from './wait.ts';

/** An address that has tried too often must wait for a minute. */
const JOIN_MS_MAX = 90_000;

/** Each of them must succeed. @param api of an account of its own */
export async function makeOtherChanges(
  stack: Stack,
  { api, operator }: { readonly api: ApiClient; readonly operator: ApiClient },
): Promise<void> {
  const host = await addHost(stack, api, operator); // The sandbox of below finds room there.
  await changeDisks(stack, api);
  await changeSandboxes(api);
  const hook = { url: 'https://hooks.example.com/berth' };
  const { id } = await api.data<{ id: string }>('POST', '/api/webhooks', hook);
  const removed = await api.call('DELETE', `/api/webhooks/${id}`);
  assert.equal(removed.status, 204);
  await host.remove();
}

interface Delegations {
  readonly delegations: readonly { readonly clientId: string; readonly inodeId: number }[];
}

async function changeDisks(stack: Stack, api: ApiClient): Promise<void> {
  const { id } = await createDisk(api);
  await exec(api, id, 'mkdir held');
  const body = { command: 'sleep 60', disks: { a: { disk: id, checkoutPaths: ['held'] } } };
  const holder = api.call('POST', '/api/exec', body);
  const held = await waitFor('the delegation', async () => {
    const path = `/api/disks/${id}/delegations`;
    return (await api.data<Delegations>('GET', path)).delegations[0];
  });
  const { clientId, inodeId } = held;
  await api.data('POST', `/api/disks/${id}/revoke-delegation`, { clientId, inodeId });
  await holder;

  const bucket = await newDiskUser(stack, api);
  const onBucket = await createBucketDisk(api, bucket);
  const { id: mountId } = await readMount(api, onBucket.id);
  await api.data('POST', `/api/disks/${onBucket.id}/mounts/${mountId}/credentials`, {
    accessKeyId: bucket.identifier,
    secretAccessKey: bucket.token,
  });
}

async function changeSandboxes(api: ApiClient): Promise<void> {
  const name = newName();
  const { sandbox_id: id } = await createSandbox(api, { name, mem_size_mib: 256 });
  const at = sandboxPath(id);
  const connect = await api.call('POST', '/api/sandboxes/connections', { name });
  assert(connect.status < 300, JSON.stringify(connect.body));
  await execIn(api, id, 'touch /root/from');
  await api.data('POST', `${at}/files/move`, { from: '/root/from', to: '/root/to' });
  await api.data('POST', `${at}/pause?wait=true`);
  await api.data('POST', `${at}/resume?wait=true`);
  await removeSandbox(api, id);
}

async function addHost(
  stack: Stack,
  api: ApiClient,
  operator: ApiClient,
): Promise<{ remove: () => Promise<void> }> {
  const { hostInvitations } = await stack.openDirectory();
  const proof = randomSecret();
  await hostInvitations.add(invitationIdOf(proof), 'sealed', 2 * JOIN_MS_MAX);
  // The same address may have tried often by now.
  await waitFor(
    'the join',
    async () => {
      const body = { proof, nonce: randomSecret(), name: 'new' };
      const { status } = await api.call('POST', '/api/hosts/join', body);
      if (status !== 429) assert.equal(status, 200);
      return status === 200;
    },
    JOIN_MS_MAX,
  );

  const agent = await stack.addAgent();
  await agent.start();
  const host = `/api/hosts/${await hostIdOf(agent.environment)}`;
  await waitFor('the host', async () => (await operator.call('GET', host)).status === 200);
  for (const order of ['cordon', 'uncordon']) await operator.data('POST', `${host}/${order}`);
  const remove = async (): Promise<void> => {
    await operator.data('POST', `${host}/drain`);
    await agent.daemon.stop();
    await waitFor('the host to be away', async () => {
      const { status } = await operator.call('POST', `${host}/fence`);
      return status === 200;
    });
    await operator.data('DELETE', host);
  };
  return { remove };
}
