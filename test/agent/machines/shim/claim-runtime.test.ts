import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { claimRuntime } from '../../../../agent/machines/shim/claim-runtime.ts';
import { paths } from '../../../../agent/system/paths.ts';
import { newSandboxId } from '../../../../shared/ids.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';

test('a host changes its runtime only while it has no sandboxes', async (t) => {
  await using directory = await temporaryDirectory();
  const { path } = directory;
  await claimRuntime(path, 'container');
  await claimRuntime(path, 'microvm');
  await mkdir(join(paths.sandboxes(path), newSandboxId()), { recursive: true });
  await claimRuntime(path, 'microvm');
  await t.throwsAsync(claimRuntime(path, 'container'), { message: /SANDBOX_RUNTIME/u });
});

test('a host of before there was a choice has virtual machines', async (t) => {
  await using directory = await temporaryDirectory();
  const { path } = directory;
  await mkdir(join(paths.sandboxes(path), newSandboxId()), { recursive: true });
  await t.throwsAsync(claimRuntime(path, 'container'), { message: /SANDBOX_RUNTIME/u });
  await t.notThrowsAsync(claimRuntime(path, 'microvm'));
});
