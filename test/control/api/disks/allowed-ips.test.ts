import { SCHEMA_LIMITS } from '../../../../shared/schemas/limits.ts';
import type { Disk } from '../../../../shared/schemas/disk.ts';
import { createDisk, exec, readManifest } from '../../../helpers/disks.ts';
import { stackTest } from '../../../helpers/stack-test.ts';

interface AllowedIps {
  allowedIps: string[];
}

const test = stackTest();

test('the list can be read, replaced and cleared, and the disk and its manifest show it', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api, { allowedIps: ['10.0.0.1'] });
  const path = `/api/disks/${id}/allowed-ips`;
  t.deepEqual(await api.data<AllowedIps>('GET', path), { allowedIps: ['10.0.0.1'] });
  for (const allowedIps of [['192.0.2.0/24', '2001:db8::1'], ['10.0.0.9'], []]) {
    t.deepEqual(await api.data<AllowedIps>('PUT', path, { allowedIps }), { allowedIps });
    t.deepEqual(await api.data<AllowedIps>('GET', path), { allowedIps });
    t.deepEqual((await api.data<Disk>('GET', `/api/disks/${id}`)).allowedIps, allowedIps);
    t.deepEqual((await readManifest(stack, id)).allowedIps, allowedIps);
  }
});

const normal = test.macro({
  async exec(t, given: string[], expected: string[]) {
    const { api } = t.context;
    const { id } = await createDisk(api, { allowedIps: given });
    const path = `/api/disks/${id}/allowed-ips`;
    t.deepEqual(await api.data<AllowedIps>('GET', path), { allowedIps: expected });
    const put = await api.data<AllowedIps>('PUT', path, { allowedIps: given });
    t.deepEqual(put, { allowedIps: expected });
  },
  title: (_given, given: string[], expected: string[]) =>
    `${given.join(', ')} is kept as ${expected.join(', ')}`,
});

test(normal, ['2001:DB8:0:0::0:1'], ['2001:db8::1']);
test(normal, ['2001:DB8::/32'], ['2001:db8::/32']);
test(normal, ['::'], ['::']);
test(normal, ['0.0.0.0/0', '::/0'], ['0.0.0.0/0', '::/0']);
test(normal, ['10.0.0.1/32'], ['10.0.0.1/32']);
test(normal, ['10.0.0.1', '10.0.0.1'], ['10.0.0.1']);
test(normal, ['::ffff:10.0.0.1', '::FFFF:a00:1/128'], ['10.0.0.1', '10.0.0.1/32']);
test(normal, ['::ffff:10.0.0.0/104', '::ffff:0:0/96'], ['10.0.0.0/8', '0.0.0.0/0']);
test(normal, ['::ffff:0:0/95'], ['::ffff:0:0/95']);

const bad = test.macro({
  async exec(t, allowedIps: unknown) {
    const { api } = t.context;
    const { id } = await createDisk(api, { allowedIps: ['10.0.0.1'] });
    const path = `/api/disks/${id}/allowed-ips`;
    const reply = await api.call('PUT', path, { allowedIps });
    t.is(reply.status, 400);
    t.is(reply.body.code, 'bad_request');
    t.deepEqual(await api.data<AllowedIps>('GET', path), { allowedIps: ['10.0.0.1'] });
    const created = await api.call('POST', '/api/disks', { name: 'refused', allowedIps });
    t.is(created.status, 400, 'at creation');
  },
  title: (_given, value) => `refused: ${JSON.stringify(value)?.slice(0, 60)}`,
});

test(bad, null);
test(bad, '10.0.0.1');
test(bad, [7]);
test(bad, ['']);
test(bad, ['host.test']);
test(bad, ['10.0.0.256']);
test(bad, ['10.0.0.1/33']);
test(bad, ['2001:db8::/129']);
test(bad, ['10.0.0.1/-1']);
test(bad, ['10.0.0.1/']);
test(bad, ['10.0.0.1 ']);
test(bad, ['10.0.0.1\n']);
test(bad, ['10.0.0.1', '10.0.0.2,10.0.0.3']);
// Short and octal spellings mean something else than most people who write them think.
test(bad, ['10/8']);
test(bad, ['10.1/16']);
test(bad, ['010.0.0.1']);
test(bad, ['010.0.0.0/8']);
test(bad, ['0x0a000001']);
test(bad, ['167772161']);
test(bad, ['167772161/8']);
test(bad, ['fe80::1%eth0']);
test(
  bad,
  Array.from(
    { length: SCHEMA_LIMITS.allowedIpsPerDiskMax + 1 },
    (_, i) => `10.0.${i >> 8}.${i & 255}`,
  ),
);

test('a body without the list is refused', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  t.is((await api.call('PUT', `/api/disks/${id}/allowed-ips`, {})).status, 400);
  t.is((await api.call('PUT', `/api/disks/${id}/allowed-ips`)).status, 400);
});

test('the list does not govern API calls', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api, { allowedIps: ['192.0.2.1'] });
  t.is((await exec(api, id, 'echo here')).stdout, 'here\n');
});

test('an unused disk has no delegations, and revoking one answers 404', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  t.deepEqual<unknown, unknown>(await api.data('GET', `/api/disks/${id}/delegations`), {
    delegations: [],
  });
  const reply = await api.call('POST', `/api/disks/${id}/revoke-delegation`, {
    clientId: 'client',
    inodeId: 12,
  });
  t.is(reply.status, 404);
  t.is(reply.body.code, 'not_found');
});

for (const body of [
  {},
  { clientId: 'c' },
  { inodeId: 1 },
  { clientId: '', inodeId: 1 },
  { clientId: 'c', inodeId: '1' },
  { clientId: 'c', inodeId: 1.5 },
  { clientId: 'c', inodeId: -1 },
]) {
  test(`revoking is refused without a client and an inode: ${JSON.stringify(body)}`, async (t) => {
    const { api } = t.context;
    const { id } = await createDisk(api);
    const reply = await api.call('POST', `/api/disks/${id}/revoke-delegation`, body);
    t.is(reply.status, 400);
  });
}
