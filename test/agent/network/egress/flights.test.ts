import test from 'ava';
import { Flights } from '../../../../agent/network/egress/flights.ts';

/** Whether a request to a host is waited for. */
async function isAwaited(pattern: string, host: string): Promise<boolean> {
  const flights = new Flights();
  const end = flights.beginRequest(host);
  const drained = flights.drained([pattern], AbortSignal.abort()).then(
    () => false,
    () => true,
  );
  const found = await drained;
  end();
  return found;
}

const cases: readonly (readonly [pattern: string, host: string, fits: boolean])[] = [
  ['api.test', 'api.test', true],
  ['api.test', 'api.test.', false],
  ['*', 'anything', true],
  ['*', '', true],
  ['*.test', 'api.test', true],
  ['*.test', '.test', true],
  ['*.test', 'test', false],
  ['api.*', 'api.test', true],
  ['api.*', 'xapi.test', false],
  ['a*a', 'a', false],
  ['a*a', 'aa', true],
  ['a*b*c', 'abc', true],
  ['a*b*c', 'axbxbxc', true],
  ['a*b*c', 'acb', false],
  ['*ab*ab', 'ab', false],
  ['*ab*ab', 'xabab', true],
  ['a**b', 'ab', true],
  ['a.c', 'abc', false],
];
for (const [pattern, host, fits] of cases) {
  test(`${pattern} ${fits ? 'waits' : 'does not wait'} for "${host}"`, async (t) => {
    t.is(await isAwaited(pattern, host), fits);
  });
}

test('a pattern of many wildcards takes no longer than others', async (t) => {
  t.false(await isAwaited(`${'*a'.repeat(50)}*b`, 'a'.repeat(10_000)));
  t.true(await isAwaited(`${'*a'.repeat(50)}*b`, `${'a'.repeat(10_000)}b`));
});
