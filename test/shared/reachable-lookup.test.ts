import { lookup } from 'node:dns/promises';
import test from 'ava';
import { reachableLookup } from '../../shared/reachable-lookup.ts';
import { ReachableNetworks } from '../../shared/reachable-networks.ts';

const PORT = 9000;
const refusal = (host: string): Error => new Error(`${host} is out of reach`);

const resolve = (networks: readonly string[], all: boolean): Promise<unknown> =>
  new Promise((done, fail) => {
    const find = reachableLookup(new ReachableNetworks(networks), PORT, refusal);
    find('localhost', { all }, (error, found) => (error === null ? done(found) : fail(error)));
  });

test('names lead to those of their addresses that are within reach', async (t) => {
  const { address } = await lookup('localhost', { family: 4 });
  t.is(address, '127.0.0.1');
  const outOfReach = { message: 'localhost is out of reach' };
  await t.throwsAsync(resolve([], false), outOfReach);
  await t.throwsAsync(resolve(['10.0.0.0/8'], true), outOfReach);
  await t.throwsAsync(resolve(['127.0.0.1/32:9001'], true), outOfReach);
  for (const network of ['127.0.0.0/8', '127.0.0.1/32:9000']) {
    t.is(await resolve([network], false), '127.0.0.1');
    t.deepEqual(await resolve([network], true), [{ address: '127.0.0.1', family: 4 }]);
  }
});
