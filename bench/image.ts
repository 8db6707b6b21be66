import assert from 'node:assert';
import { execFile } from 'node:child_process';
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { gzipSync } from 'node:zlib';
import { GiB } from '../shared/units.ts';
import type { ApiClient } from '../test/helpers/api.ts';
import { defaultImageDir, openImageHost } from '../test/helpers/image-host.ts';
import { imageOf, TestRegistry } from '../test/helpers/registry.ts';
import { Stack } from '../test/helpers/stack.ts';
import { temporaryDirectory } from '../test/helpers/temporary.ts';
import { tinyLayer } from '../test/helpers/tiny-image.ts';
import { compareCreates, runtimeSettings } from './creates.ts';
import { readFlags } from './flags.ts';
import { SandboxCalls } from './sandbox-calls.ts';
import { inTurns, printComparison, timed } from './statistics.ts';

const execute = promisify(execFile);
const POLL_MS = 200;
/** Each takes half a minute. */
const BUILD_ROUNDS_MAX = 3;

/** Pulls, unpacks and makes a disk as one would by hand. */
async function byHand(directory: string, reference: string): Promise<number> {
  await mkdir(directory);
  const [layout, bundle] = [join(directory, 'layout'), join(directory, 'bundle')];
  const copy = ['copy', '--quiet', '--insecure-policy', '--src-tls-verify=false'];
  const elapsedMs = await timed(async () => {
    await execute('skopeo', [...copy, `docker://${reference}`, `oci:${layout}:image`]);
    await execute('umoci', ['unpack', '--image', `${layout}:image`, bundle]);
    const tree = ['-q', '-t', 'ext4', '-d', join(bundle, 'rootfs')];
    await execute('mke2fs', [...tree, join(directory, 'root.ext4'), '32G']);
  });
  await rm(directory, { recursive: true });
  return elapsedMs;
}

/** A build of the default image's tree beside the bare tools. */
async function benchBuild(directory: string, registry: TestRegistry, rounds: number) {
  const host = await openImageHost(directory, [registry], { bytesMax: 4 * GiB });
  try {
    const tar = ['-C', await defaultImageDir(), '--xattrs', '-cf', '-', '.'];
    const { stdout } = await execute('tar', tar, { encoding: 'buffer', maxBuffer: 2 * GiB });
    const layer = { archive: stdout, blob: gzipSync(stdout, { level: 6 }) };
    const reference = await registry.push('debian', 'bench', imageOf([layer]));
    const times = await inTurns(Math.min(rounds, BUILD_ROUNDS_MAX), {
      async ours() {
        const ms = await timed(async () => {
          (await host.builder.bring({ reference }, { accountId: 'bench' })).release();
        });
        for (const { digest } of host.store.unused) await host.store.remove(digest);
        await rm(join(directory, 'images'), { recursive: true });
        return ms;
      },
      baseline: () => byHand(join(directory, 'by-hand'), reference),
    });
    const names = { ours: 'build', baseline: 'skopeo, umoci, mke2fs' };
    const options = { unit: 'ms', target: '≤ 1.4' };
    printComparison('build of an image from a registry', times, names, options);
  } finally {
    await host.close();
  }
}

/** Builds an image that is not the default one. @returns its id */
async function buildImage(api: ApiClient, source: string): Promise<string> {
  const built = { image_id: '', status: '' };
  Object.assign(built, await api.data('POST', '/api/images', { source }));
  while (built.status === 'building') {
    await sleep(POLL_MS);
    Object.assign(built, await api.data('GET', `/api/images/${built.image_id}`));
  }
  assert.equal(built.status, 'ready', JSON.stringify(built));
  return built.image_id;
}

/** `npm run bench -- image`: see docs/benchmarks.md. */
export async function benchImage(args: readonly string[]): Promise<void> {
  const numbers = { rounds: 20, memory: 512, prewarmed: 2 };
  const known = { ...numbers, runtime: ['microvm', 'container'] } as const;
  const { runtime, only, ...flags } = readFlags(args, known, ['build', 'create']);
  await using directory = await temporaryDirectory();
  const registry = await TestRegistry.start(directory.path, 'registry');
  try {
    if (only.has('build')) await benchBuild(directory.path, registry, flags.rounds);
    if (!only.has('create')) return;
    const settings = runtimeSettings(runtime, flags.prewarmed);
    await using stack = await Stack.start({ ...settings, IMAGE_REGISTRIES: registry.url });
    const api = await stack.newClient();
    const tiny = imageOf([await tinyLayer(join(directory.path, 'tree'), 'tiny')]);
    const image = await buildImage(api, await registry.push('bench/tiny', '1', tiny));
    const kinds = { 'a built image': { image_id: image } };
    await compareCreates(new SandboxCalls(api), flags, kinds);
  } finally {
    await registry.stop();
  }
}
