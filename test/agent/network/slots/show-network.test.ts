/* A list of `ip` that was interrupted is asked for again; a program in its place plays that. */
import { chmod, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import anyTest from 'ava';
import { temporaryDirectory } from '../../../helpers/temporary.ts';

const { serial: test } = anyTest;
const directory = await temporaryDirectory();
// Before the agent's modules are loaded, which read it once.
process.env['PATH'] = `${directory.path}:${process.env['PATH'] ?? ''}`;
const { showNetwork } = await import('../../../../agent/network/slots/show-network.ts');
test.after.always(() => directory[Symbol.asyncDispose]());

/**
 * Puts a program before the real `ip` that says, so many times, that the list may be incomplete.
 */
async function interrupt(times: number): Promise<() => Promise<number>> {
  const calls = join(directory.path, `calls-${times}`);
  const script = `#!/bin/sh
echo call >> ${calls}
[ "$(wc -l < ${calls})" -gt ${times} ] || echo 'Dump was interrupted and may be inconsistent.' >&2
echo '[{"ifname":"lo"}]'
`;
  await writeFile(join(directory.path, 'ip'), script);
  await chmod(join(directory.path, 'ip'), 0o755);
  return async () => (await readFile(calls, 'utf8')).split('\n').length - 1;
}

test('a list that was interrupted is asked for again', async (t) => {
  const calls = await interrupt(2);
  t.deepEqual(await showNetwork(['link', 'show']), [{ ifname: 'lo' }]);
  t.is(await calls(), 3);
});

test('a list that is interrupted every time is an error, after a bounded number of attempts', async (t) => {
  const calls = await interrupt(1_000);
  await t.throwsAsync(showNetwork(['link', 'show']), { message: /was interrupted 10 times/u });
  t.is(await calls(), 10);
});
