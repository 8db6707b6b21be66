/* A list of `ip` that was interrupted is asked for again; a program in its place plays that. */
import { chmod, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import anyTest from 'ava';
import { showNetwork } from '../../../agent/network/show-network.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

const { serial: test } = anyTest;
const path = process.env['PATH'];
test.afterEach.always(() => {
  process.env['PATH'] = path;
});

/**
 * Puts a program before the real `ip` that says, so many times, that the list may be incomplete.
 */
async function interrupt(directory: string, times: number): Promise<() => Promise<number>> {
  const calls = join(directory, 'calls');
  const script = `#!/bin/sh
echo call >> ${calls}
[ "$(wc -l < ${calls})" -gt ${times} ] || echo 'Dump was interrupted and may be inconsistent.' >&2
echo '[{"ifname":"lo"}]'
`;
  await writeFile(join(directory, 'ip'), script);
  await chmod(join(directory, 'ip'), 0o755);
  process.env['PATH'] = `${directory}:${path ?? ''}`;
  return async () => (await readFile(calls, 'utf8')).split('\n').length - 1;
}

test('a list that was interrupted is asked for again', async (t) => {
  await using directory = await temporaryDirectory();
  const calls = await interrupt(directory.path, 2);
  t.deepEqual(await showNetwork(['link', 'show']), [{ ifname: 'lo' }]);
  t.is(await calls(), 3);
});

test('a list that is interrupted every time is an error, after a bounded number of attempts', async (t) => {
  await using directory = await temporaryDirectory();
  const calls = await interrupt(directory.path, 1_000);
  await t.throwsAsync(showNetwork(['link', 'show']), { message: /was interrupted 10 times/u });
  t.is(await calls(), 10);
});
