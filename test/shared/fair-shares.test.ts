import test from 'ava';
import * as fc from '../helpers/fast-check.ts';
import { FairShares, type Permit } from '../../shared/fair-shares.ts';

test('a party that is alone gets half of the permits, and each later party finds one', (t) => {
  const shares = new FairShares(64);
  const counts: number[] = [];
  for (const party of ['a', 'b', 'c', 'd']) {
    let count = 0;
    while (shares.take([party]) !== undefined) count += 1;
    counts.push(count);
  }
  t.deepEqual(counts, [32, 16, 8, 4]);
});

test('a permit counts against each of its parties', (t) => {
  const shares = new FairShares(8);
  for (let address = 0; address < 4; address += 1) {
    t.truthy(shares.take([`address ${address}`, 'link']));
  }
  t.is(shares.take(['address 9', 'link']), undefined);
  t.truthy(shares.take(['address 9', 'other link']));
});

test('the counts stay right whatever is taken and released', (t) => {
  const steps = fc.array(
    fc.record({ give: fc.boolean(), parties: fc.uniqueArray(fc.constantFrom('a', 'b', 'c')) }),
  );
  fc.assert(
    fc.property(steps, fc.integer({ min: 2, max: 12 }), (all, count) => {
      const shares = new FairShares(count);
      const held: Permit[] = [];
      for (const { give, parties } of all) {
        const permit = give ? held.pop() : shares.take(parties);
        if (permit === undefined) continue;
        if (!give) {
          held.push(permit);
          continue;
        }
        permit[Symbol.dispose]();
        permit[Symbol.dispose](); // Disposing twice does no harm.
      }
      t.is(shares.isFull, held.length >= count);
      for (const permit of held) permit[Symbol.dispose]();
      t.false(shares.isFull);
      let alone = 0;
      while (shares.take(['a']) !== undefined) alone += 1;
      t.is(alone, Math.max(1, Math.floor(count / 2)));
    }),
  );
});
