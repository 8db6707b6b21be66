import test from 'ava';
import { createDisk, newName } from '../../../helpers/disks.ts';
import { Stack } from '../../../helpers/stack.ts';
import { ApiClient } from '../../../helpers/api.ts';

test('a preview region accepts disks only from accounts that were let in', async (t) => {
  const stack = await Stack.start({ REGION_PREVIEW: 'true', REGION: 'aws-us-west-2' });
  t.teardown(() => stack.stop());
  const { accounts, apiKeys } = await stack.openDirectory();
  const account = await accounts.create('tester');
  const { token } = await apiKeys.create(account, { name: 'test' });
  const api = new ApiClient(stack.baseUrl, token);

  const name = newName();
  const refused = await api.call('POST', '/api/disks', { name });
  t.is(refused.status, 403);
  t.is(refused.body.code, 'forbidden');
  t.regex(refused.body.error, /aws-us-west-2/u);
  t.deepEqual(await api.data<unknown>('GET', '/api/disks'), []);

  await accounts.setRegionAccess(account.id, 'aws-us-east-1', true);
  t.is((await api.call('POST', '/api/disks', { name })).status, 403, 'another region');

  await accounts.setRegionAccess(account.id, 'aws-us-west-2', true);
  const disk = await createDisk(api, { name });
  t.like(disk, { region: 'aws-us-west-2', provider: 'aws', name });

  await accounts.setRegionAccess(account.id, 'aws-us-west-2', false);
  t.is((await api.call('POST', '/api/disks', { name: newName() })).status, 403);
  t.is((await api.call('GET', `/api/disks/${disk.id}`)).status, 200, 'what is there stays');
});
