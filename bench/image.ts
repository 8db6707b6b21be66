import assert from 'node:assert';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { imageOf, TestRegistry } from '../test/helpers/registry.ts';
import type { Environment } from '../test/helpers/daemon.ts';
import { containerSettings } from '../test/helpers/sandboxes.ts';
import { Stack } from '../test/helpers/stack.ts';
import { temporaryDirectory } from '../test/helpers/temporary.ts';
import { tinyLayer } from '../test/helpers/tiny-image.ts';
import { findGuest } from './sandbox.ts';
import { benchImageBuild } from './image-build.ts';
import { benchImageCreate, type CreateFlags } from './image-create.ts';
import { SandboxCalls } from './sandbox-calls.ts';

const POLL_MS = 200;

function readFlags(args: readonly string[]): CreateFlags & { readonly runtime: string } {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rounds: { type: 'string', default: '20' },
      memory: { type: 'string', default: '512' },
      prewarmed: { type: 'string', default: '2' },
      runtime: { type: 'string', default: 'microvm' },
    },
  });
  const number = (name: 'rounds' | 'memory' | 'prewarmed', min: number): number => {
    const value = Number(values[name]);
    assert(Number.isInteger(value) && value >= min, `--${name}: a number from ${min} on`);
    return value;
  };
  return {
    rounds: number('rounds', 1),
    memSizeMib: number('memory', 256),
    prewarmed: number('prewarmed', 0),
    runtime: values.runtime,
  };
}

async function machineSettings(): Promise<Environment> {
  const { guestDir, rootDisk } = await findGuest();
  return { GUEST_DIR: guestDir, DEFAULT_ROOT_DISK: rootDisk, SANDBOX_ACCELERATOR: 'tcg' };
}

/** @returns the id of an image that is not the default one, once it is built */
async function buildImage(
  stack: Stack,
  registry: TestRegistry,
  tree: string,
): Promise<{
  readonly calls: SandboxCalls;
  readonly imageId: string;
}> {
  const source = await registry.push('bench/tiny', '1', imageOf([await tinyLayer(tree, 'tiny')]));
  const api = await stack.newClient();
  const built = { image_id: '', status: '' };
  Object.assign(built, await api.data('POST', '/api/images', { source }));
  while (built.status === 'building') {
    await sleep(POLL_MS);
    Object.assign(built, await api.data('GET', `/api/images/${built.image_id}`));
  }
  assert.equal(built.status, 'ready', JSON.stringify(built));
  const calls = new SandboxCalls(api, AbortSignal.timeout(3_600_000));
  return { calls, imageId: built.image_id };
}

/**
 * `npm run bench -- image [--rounds N] [--memory MIB] [--prewarmed N] [--runtime
 * microvm|container]`: see docs/benchmarks.md.
 */
export async function benchImage(args: readonly string[]): Promise<void> {
  await benchImageBuild();
  const flags = readFlags(args);
  await using directory = await temporaryDirectory();
  const registry = await TestRegistry.start(directory.path, 'registry');
  const settings = {
    ...(flags.runtime === 'container' ? containerSettings() : await machineSettings()),
    IMAGE_REGISTRIES: registry.url,
    SANDBOX_PREWARMED: String(flags.prewarmed),
  };
  try {
    const stack = await Stack.start(settings, [], true);
    try {
      const tree = join(directory.path, 'tree');
      const { calls, imageId } = await buildImage(stack, registry, tree);
      await benchImageCreate(calls, imageId, flags);
    } finally {
      await stack.stop();
    }
  } finally {
    await registry.stop();
  }
}
