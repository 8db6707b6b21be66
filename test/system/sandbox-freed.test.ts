/* The space of files that were deleted inside a virtual machine. */
import anyTest, { type TestFn } from 'ava';
import { MiB } from '../../shared/units.ts';
import type { ApiClient } from '../helpers/api.ts';
import { putProgram } from '../helpers/network-checks.ts';
import {
  bring,
  createSandbox,
  forkSandbox,
  outputOf,
  removeSandbox,
  sandboxPath,
  sandboxSettings,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient }>;

const FILE_MIB = 48;
/** Less than the file, and more than directories, maps and the file system's journal take. */
const REST = 16 * MiB;

test.before(async (t) => {
  const stack = await Stack.start(sandboxSettings());
  t.context = { stack, api: await stack.newClient() };
});

test.after.always((t) => t.context.stack.stop());

async function storedBytes(api: ApiClient, id: string): Promise<number> {
  const path = `${sandboxPath(id)}/metrics`;
  return (await api.data<{ stored_bytes: number }>('GET', path)).stored_bytes;
}

const write = `dd if=/dev/urandom of=/root/big bs=1M count=${FILE_MIB} 2>/dev/null; sync`;

test('a deleted file gives its space back while the sandbox runs', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const before = await storedBytes(api, id);
  await outputOf(api, id, write);
  t.true((await storedBytes(api, id)) >= before + FILE_MIB * MiB);
  await outputOf(api, id, 'rm /root/big; sync');
  await waitFor('its space', async () => (await storedBytes(api, id)) < before + REST);
  await removeSandbox(api, id);
});

test('files that were deleted right before a fork leave nothing in the shared layer', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const before = await storedBytes(api, id);
  await outputOf(api, id, write);
  await outputOf(api, id, 'rm /root/big');
  const { sandbox_id: copy } = await forkSandbox(api, id);
  await removeSandbox(api, copy);
  t.true((await storedBytes(api, id)) < before + REST);
  await removeSandbox(api, id);
});

test('space that became free in pieces goes back, at the next pause at the latest', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const program = await putProgram(api, id, 'free-in-pieces.py');
  const before = await storedBytes(api, id);
  await outputOf(api, id, `${program} ${FILE_MIB}`);
  await bring(api, id, 'pause', 'paused');
  await bring(api, id, 'resume', 'running');
  // The checkpoint of the pause is removed in the background.
  await waitFor('its space', async () => (await storedBytes(api, id)) < before + REST);
  t.is((await outputOf(api, id, 'wc -c </root/pieces')).trim(), String(FILE_MIB * MiB));
  await removeSandbox(api, id);
});
