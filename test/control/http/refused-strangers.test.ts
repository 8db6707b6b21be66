import test from 'ava';
import { pino } from 'pino';
import { RefusedStrangers } from '../../../control/http/refused-strangers.ts';
import { HTTP_LIMITS } from '../../../control/http/limits.ts';
import { waitFor } from '../../helpers/wait.ts';

interface Line {
  readonly details: { readonly address: string; readonly count: number };
}

function openStrangers(summedForMs?: number) {
  const lines: Line[] = [];
  const append = async (line: string): Promise<void> => {
    lines.push(JSON.parse(line) as Line);
  };
  return {
    lines,
    strangers: new RefusedStrangers({ append }, pino({ level: 'silent' }), summedForMs),
  };
}

const call = (address: string) => ({ eventType: 'disk.created', status: 401, address });

test('refused calls of an address make one line, whatever their number', async (t) => {
  const { lines, strangers } = openStrangers(20);
  for (let count = 0; count < 5000; count += 1) strangers.count(call('192.0.2.1'));
  for (let host = 1; host < 9; host += 1) strangers.count(call(`2001:db8:1:2::${host}`));
  await waitFor('the lines', async () => lines.length > 0);
  const found = lines.map(({ details: { address, count } }) => [address, count]);
  t.deepEqual(found, [
    ['192.0.2.1', 5000],
    ['2001:db8:1:2::/64', 8],
  ]);
  await strangers.flush();
  t.is(lines.length, 2);
});

test('any number of addresses makes a bounded number of lines', async (t) => {
  const { lines, strangers } = openStrangers();
  const addresses = HTTP_LIMITS.auditStrangersMax + 500;
  for (let index = 0; index < addresses; index += 1) {
    strangers.count(call(`10.0.${index >> 8}.${index & 255}`));
  }
  await strangers.flush();
  t.is(lines.length, HTTP_LIMITS.auditStrangersMax + 1);
  t.like(lines.at(-1), { details: { address: 'others', count: 500 } });
});
