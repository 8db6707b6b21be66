import test from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import { orderedMember } from '../../../shared/directory/page.ts';

const time = fc
  .date({ min: new Date(0), max: new Date('9999-12-31'), noInvalidDate: true })
  .map((date) => date.toISOString());
const id = fc.stringMatching(/^dsk-[0-9a-f]{16}$/u);

test('members sort as bytes by time, then by id', (t) => {
  fc.assert(
    fc.property(time, id, time, id, (timeA, idA, timeB, idB) => {
      const bytes = Buffer.from(orderedMember(timeA, idA)).compare(
        Buffer.from(orderedMember(timeB, idB)),
      );
      const times = Date.parse(timeA) - Date.parse(timeB);
      const expected = times === 0 ? Buffer.from(idA).compare(Buffer.from(idB)) : times;
      t.is(Math.sign(bytes), Math.sign(expected));
    }),
  );
});
