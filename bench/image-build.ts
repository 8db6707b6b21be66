import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { gzipSync } from 'node:zlib';
import { defaultImageDir, openImageHost } from '../test/helpers/image-host.ts';
import { imageOf, TestRegistry } from '../test/helpers/registry.ts';
import { GiB } from '../shared/units.ts';
import { printComparison, timed } from './statistics.ts';

const execute = promisify(execFile);
const RATIO_MAX = 1.4;
/** Each takes half a minute. */
const ROUNDS = 3;

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

/** A build of the default image's tree, from a registry on loopback, beside the bare tools. */
export async function benchImageBuild(): Promise<void> {
  const directory = await mkdtemp(join(tmpdir(), 'berth-bench-images-'));
  const registry = await TestRegistry.start(directory, 'registry');
  const host = await openImageHost(directory, [registry], { bytesMax: 4 * GiB });
  const times = { ours: [] as number[], baseline: [] as number[] };
  try {
    const tar = ['-C', await defaultImageDir(), '--xattrs', '-cf', '-', '.'];
    const { stdout } = await execute('tar', tar, { encoding: 'buffer', maxBuffer: 2 * GiB });
    const layer = { archive: stdout, blob: gzipSync(stdout, { level: 6 }) };
    const reference = await registry.push('debian', 'bench', imageOf([layer]));
    for (let round = 0; round < ROUNDS; round += 1) {
      const elapsedMs = await timed(async () => {
        (await host.builder.bring({ reference }, { accountId: 'bench' })).release();
      });
      times.ours.push(elapsedMs);
      for (const { digest } of host.store.unused) await host.store.remove(digest);
      await rm(join(directory, 'images'), { recursive: true });
      times.baseline.push(await byHand(join(directory, 'by-hand'), reference));
    }
  } finally {
    await host.close();
    await registry.stop();
    await rm(directory, { recursive: true, force: true });
  }
  const names = { ours: 'build', baseline: 'skopeo, umoci, mke2fs' };
  const options = { unit: 'ms', target: `<= ${RATIO_MAX}` };
  printComparison('build of an image from a registry', times, names, options);
}
