/* Which images go for want of space, and from where. */
import { mkdir, readdir, stat, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { openDefaultImage } from '../../../agent/images/default-image.ts';
import { ImageEviction } from '../../../agent/images/image-eviction.ts';
import { ImageStore } from '../../../agent/images/image-store.ts';
import { RegionStore } from '../../../agent/images/region-store.ts';
import { createLogger } from '../../../shared/log.ts';
import { defaultImageDir } from '../../helpers/image-host.ts';
import { regionStorage } from '../../helpers/region-storage.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

const DAY_MS = 86_400_000;
const RESERVE = 100;
const PLENTY = 1000;
const HOUR_MS = 3_600_000;
const hexes = ['a', 'b'].map((digit) => digit.repeat(64));

/**
 * A host and its region, each with the same two images, of which the first is the longest unused.
 */
async function newHost(spaces: {
  readonly own: { readonly freeBytes: number; readonly device: number };
  readonly region: { readonly freeBytes: number; readonly device: number };
}) {
  const temporary = await temporaryDirectory();
  const [own, shared] = [join(temporary.path, 'own'), join(temporary.path, 'shared')];
  const usedOf = (hex: string): string => join(shared, 'images', `sha256-${hex}-amd64`, 'used');
  for (const [index, hex] of hexes.entries()) {
    const usedAt = new Date(Date.now() - (60 - index) * 60_000);
    const config = { env: {}, workingDir: '/', user: '' };
    const record = join(own, `sha256-${hex}`, 'image.json');
    const used = usedOf(hex);
    for (const file of [record, used]) {
      await mkdir(join(file, '..'), { recursive: true });
      await writeFile(file, JSON.stringify({ digest: `sha256:${hex}`, platform: 'amd64', config }));
      await utimes(file, usedAt, usedAt);
    }
  }
  const log = createLogger('test', {});
  const store = await ImageStore.open({
    ...{ directory: own, firstLoop: 0, log },
    defaultImage: await openDefaultImage(await defaultImageDir(), undefined),
  });
  const eviction = new ImageEviction({
    store,
    region: new RegionStore(regionStorage(shared, temporary.path), 'host-a', 'amd64'),
    storage: {
      spaceOf: (name) => (name === 'own' ? spaces.own : spaces.region),
      reserveBytes: RESERVE,
    },
    directories: { own: 'own', region: 'region' },
    ...{ keepMs: DAY_MS, log },
  });
  const kept = async () => ({
    own: (await readdir(own)).length,
    region: (await readdir(join(shared, 'images'))).length,
  });
  return {
    eviction,
    store,
    kept,
    usedOf,
    [Symbol.asyncDispose]: () => temporary[Symbol.asyncDispose](),
  };
}

test('a host whose own file system is short of space leaves the region’s images', async (t) => {
  const spaces = { own: { freeBytes: 1, device: 1 }, region: { freeBytes: PLENTY, device: 2 } };
  await using host = await newHost(spaces);
  for (let round = 0; round < 3; round += 1) await host.eviction.evict();
  t.deepEqual(await host.kept(), { own: 0, region: 2 });
});

test('a region that is short of space costs a host none of its own images', async (t) => {
  const spaces = { own: { freeBytes: PLENTY, device: 1 }, region: { freeBytes: 1, device: 2 } };
  await using host = await newHost(spaces);
  await host.eviction.evict();
  t.deepEqual(await host.kept(), { own: 2, region: 1 });
});

test('where both lie on one file system, a host’s own images go first', async (t) => {
  const spaces = { own: { freeBytes: 1, device: 1 }, region: { freeBytes: 1, device: 1 } };
  await using host = await newHost(spaces);
  for (const kept of [
    { own: 1, region: 2 },
    { own: 0, region: 2 },
    { own: 0, region: 1 },
  ]) {
    await host.eviction.evict();
    t.deepEqual(await host.kept(), kept);
  }
});

test('an image that a host uses stays in the region, though nobody reads it there', async (t) => {
  const plenty = { freeBytes: PLENTY, device: 1 };
  await using host = await newHost({ own: plenty, region: plenty });
  const [heldHex = '', hex = ''] = hexes;
  const held = await host.store.hold(`sha256:${heldHex}`);
  (await host.store.hold(`sha256:${hex}`))?.release();
  const longAgo = new Date(Date.now() - 40 * DAY_MS);
  for (const each of hexes) await utimes(host.usedOf(each), longAgo, longAgo);
  await host.eviction.evict();
  t.deepEqual(await host.kept(), { own: 2, region: 2 });
  for (const each of hexes) {
    const { mtimeMs } = await stat(host.usedOf(each)); // Other hosts go by it.
    t.true(mtimeMs > Date.now() - HOUR_MS);
  }
  held?.release();
});

test('what a host left unfinished goes when it is a day old, also if it never returns', async (t) => {
  await using temporary = await temporaryDirectory();
  const images = join(temporary.path, 'images');
  const region = new RegionStore(regionStorage(temporary.path), 'host-a', 'amd64');
  const lost = join(images, '.host-lost-0123456789ab');
  const young = join(images, '.host-b-0123456789ab');
  const own = join(images, '.host-a-0123456789ab');
  for (const aside of [lost, young, own]) await mkdir(join(aside, 'pulled'), { recursive: true });
  const { directory } = await region.begin(0);
  const longAgo = new Date(Date.now() - 2 * DAY_MS);
  for (const aside of [lost, directory]) await utimes(aside, longAgo, longAgo);
  await region.removeLeftovers();
  const left = (await readdir(images)).map((name) => join(images, name));
  t.deepEqual(left.toSorted(), [young, directory].toSorted());
});
