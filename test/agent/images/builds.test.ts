import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  mkdir,
  mkdtemp,
  open as openFile,
  readdir,
  readFile,
  rm,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { promisify } from 'node:util';
import { gunzipSync, zstdCompressSync } from 'node:zlib';
import test from 'ava';
import { HOST_ACCOUNT, ImageFailure } from '../../../agent/images/image-source.ts';
import { RegionStore } from '../../../agent/images/region-store.ts';
import { interceptFailpoints } from '../../../agent/system/failpoint.ts';
import { AppError } from '../../../shared/errors.ts';
import { processesMarked } from '../../helpers/host.ts';
import { type ImageHost, openImageHost } from '../../helpers/image-host.ts';
import { regionStorage } from '../../helpers/region-storage.ts';
import {
  hostArchitecture,
  imageOf,
  indexOf,
  layerOf,
  TestRegistry,
} from '../../helpers/registry.ts';
import { waitFor } from '../../helpers/wait.ts';

const execute = promisify(execFile);
const accountId = 'account';
const login = { username: 'someone', password: 'a-password-of-some-length' };
const otherArchitecture = hostArchitecture === 'arm64' ? 'amd64' : 'arm64';
let directory: string;
let open: TestRegistry;
let closed: TestRegistry;
let host: ImageHost;

test.before(async () => {
  directory = await mkdtemp(join(tmpdir(), 'berth-test-images-'));
  [open, closed] = await Promise.all([
    TestRegistry.start(directory, 'open'),
    TestRegistry.start(directory, 'closed', login),
  ]);
  host = await openImageHost(directory, [open, closed]);
});

test.afterEach.always(() => interceptFailpoints(undefined));

test.after.always(async () => {
  await host?.close();
  await Promise.all([open?.stop(), closed?.stop()]);
  await rm(directory, { recursive: true, force: true });
});

/**
 * Another program's description of a tree: every file with owner, mode, contents and attributes.
 */
async function describeTree(root: string): Promise<string> {
  const script = `cd "$1" && find . -printf '%p %y %m %U %G %l %n\\n' | sort
    find . -type f -exec sha256sum {} + | sort
    getfattr -R -h -d -m - . | sort
    find . \\( -type b -o -type c \\) -exec stat -c '%n %t %T' {} + | sort`;
  const { stdout } = await execute('sh', ['-c', script, 'sh', root], { maxBuffer: 2 ** 26 });
  return stdout;
}

async function treeOf(reference: string): Promise<string> {
  const held = await host.builder.bring({ reference }, { accountId, tree: true });
  try {
    return await describeTree(held.image.tree);
  } finally {
    held.release();
  }
}

async function reportedBySkopeo(reference: string): Promise<string> {
  const args = ['inspect', '--tls-verify=false', `docker://${reference}`];
  const { stdout } = await execute('skopeo', args);
  return /"Digest": "(sha256:[0-9a-f]{64})"/u.exec(stdout)?.[1] ?? '';
}

const fileLayer = (name: string): ReturnType<typeof layerOf> => layerOf([{ name, content: name }]);

test.serial('a tree equals what tar unpacks of the same layer', async (t) => {
  const layer = layerOf([
    { name: './', type: 'directory', mode: 0o755 },
    { name: 'bin/', type: 'directory' },
    { name: 'bin/busybox', mode: 0o4755, content: await readFile('/bin/busybox') },
    { name: 'bin/sh', type: 'link', target: 'bin/busybox' },
    { name: 'etc/', type: 'directory', mode: 0o700, uid: 7, gid: 8 },
    {
      name: 'etc/passwd',
      content: 'root:x:0:0::/:/bin/sh\n',
      xattrs: { 'user.note': 'of the test' },
    },
    { name: 'etc/link', type: 'symlink', target: '../../../../etc/shadow' },
    { name: 'tmp/', type: 'directory', mode: 0o1777 },
    { name: 'dev/', type: 'directory' },
    { name: 'dev/null', type: 'char', mode: 0o666, device: [1, 3] },
    { name: 'pipe', type: 'fifo' },
    { name: `${'deep/'.repeat(40)}file`, content: 'deep' },
    { name: 'big', uid: 100_000, gid: 100_001, content: Buffer.alloc(300_000, 'x') },
  ]);
  const reference = await open.push('plain', 'one', imageOf([layer]));
  const found = await treeOf(reference);
  const [expected, archive] = [join(directory, 'expected'), join(directory, 'layer.tar')];
  await mkdir(expected);
  await writeFile(archive, gunzipSync(layer.blob));
  const all = ['--xattrs', '--xattrs-include=*', '--same-owner', '-xpf'];
  await execute('tar', [...all, archive, '-C', expected]);
  t.is(found, await describeTree(expected));
});

test.serial('a layer hides, replaces and adds to those below it', async (t) => {
  const layers = [
    layerOf([
      { name: 'kept/', type: 'directory' },
      { name: 'kept/a', content: 'a' },
      { name: 'kept/b', content: 'b' },
      { name: 'opaque/', type: 'directory' },
      { name: 'opaque/old', content: 'old' },
      { name: 'replaced', content: 'file' },
    ]),
    layerOf([
      { name: 'kept/.wh.a' },
      { name: 'opaque/', type: 'directory' },
      { name: 'opaque/.wh..wh..opq' },
      { name: 'opaque/new', content: 'new' },
      { name: 'replaced/', type: 'directory' },
      { name: 'replaced/now', type: 'link', target: 'kept/b' },
    ]),
    ...Array.from({ length: 98 }, (_, index) => fileLayer(`layer-${index}`)),
  ];
  const tree = await treeOf(await open.push('layers', 'one', imageOf(layers)));
  t.is(tree.match(/layer-\d+ f /gu)?.length, 98);
  t.false(tree.includes('kept/a') || tree.includes('opaque/old') || tree.includes('.wh.'));
  t.regex(tree, /opaque\/new f 644 0 0 {2}1\n/u);
  t.regex(tree, /kept\/b f 644 0 0 {2}2\n/u);
  t.regex(tree, /replaced d /u);
});

test.serial(
  'the digest is the one that skopeo reports, and the configuration is the image’s',
  async (t) => {
    const config = {
      Env: ['A=b=c', 'EMPTY=', 'none'],
      WorkingDir: 'srv//app/',
      User: '1000:www-data',
    };
    const image = imageOf([fileLayer('a')], { config, docker: true });
    const reference = await open.push('config', 'one', image);
    const held = await host.builder.bring({ reference }, { accountId });
    held.release();
    t.is(held.image.digest, await reportedBySkopeo(reference));
    t.is(held.image.platform, hostArchitecture);
    t.deepEqual(held.image.config, {
      env: { A: 'b=c', EMPTY: '' },
      workingDir: '/srv/app',
      user: '1000:www-data',
    });
  },
);

test.serial('of several platforms the host takes its own', async (t) => {
  const [own, other] = [hostArchitecture, otherArchitecture].map((architecture) =>
    imageOf([fileLayer(architecture)], { architecture }),
  );
  if (own === undefined || other === undefined) return t.fail();
  await open.push('multi', 'own', own);
  await open.push('multi', 'other', other);
  const index = indexOf({ [otherArchitecture]: other, [hostArchitecture]: own });
  const reference = await open.push('multi', 'both', index);
  t.regex(await treeOf(reference), new RegExp(`\\./${hostArchitecture} f`, 'u'));
  const held = await host.builder.bring({ reference }, { accountId });
  held.release();
  t.is(held.image.digest, index.digest);
  t.is(held.image.digest, await reportedBySkopeo(reference));
  const foreign = await open.push('multi', 'foreign', indexOf({ [otherArchitecture]: other }));
  for (const [source, says] of [
    [foreign, `only for: linux/${otherArchitecture}`],
    [`${open.name}/multi:other`, `is for linux/${otherArchitecture}, not for`],
  ] as const) {
    const failure = await t.throwsAsync(host.builder.bring({ reference: source }, { accountId }), {
      instanceOf: ImageFailure,
    });
    t.is(failure.reason, 'invalid_source');
    t.true(failure.message.includes(says), failure.message);
  }
});

test.serial('those who want the same image at once wait for one build', async (t) => {
  const reference = await open.push('shared', 'one', imageOf([fileLayer('shared')]));
  const points: string[] = [];
  interceptFailpoints(async (point) => void points.push(point));
  const steps = new Set<string>();
  const onProgress = ({ step }: { step: string }): void => void steps.add(step);
  const brought = await Promise.all(
    ['a', 'b', 'c'].map((account) =>
      host.builder.bring({ reference }, { accountId: account, onProgress }),
    ),
  );
  for (const held of brought) held.release();
  t.is(points.filter((point) => point === 'before pull image').length, 1);
  for (const step of ['waiting', 'resolving', 'pulling', 'unpacking', 'storing'])
    t.true(steps.has(step));
});

test.serial(
  'a private image needs its credentials each time, and they are kept nowhere',
  async (t) => {
    const image = imageOf([fileLayer('private')]);
    const reference = await closed.push('private', 'one', image);
    const refuse = async (source: string, credentials?: typeof login): Promise<void> => {
      const bringing = host.builder.bring({ reference: source, credentials }, { accountId });
      const failure = await t.throwsAsync(bringing, { instanceOf: ImageFailure });
      t.is(failure.reason, 'invalid_source');
      t.regex(failure.message, /denies access/u);
    };
    await refuse(reference);
    await refuse(reference, { ...login, password: 'another' });
    const seen: string[] = [];
    interceptFailpoints(async () => {
      seen.push(...(await processesMarked(login.password)));
    });
    const held = await host.builder.bring({ reference, credentials: login }, { accountId });
    held.release();
    t.is(held.image.digest, image.digest);
    t.deepEqual(seen, []);
    const files = await execute('grep', [
      '-rl',
      login.password,
      host.dataDir,
      join(directory, 'images'),
    ]).catch(() => ({ stdout: '' }));
    t.is(files.stdout, '');
    // The host has it, but the registry lets nobody else have it.
    await refuse(`${closed.name}/private@${image.digest}`);
  },
);

test.serial(
  'another host takes an image from the region, unless it was damaged there',
  async (t) => {
    const image = imageOf([fileLayer('regional')]);
    const reference = await open.push('regional', 'one', image);
    (await host.builder.bring({ reference }, { accountId })).release();
    const source = { reference: `${open.name}/regional@${image.digest}`, digest: image.digest };
    const points: string[] = [];
    interceptFailpoints(async (point) => void points.push(point));
    const pulls = (): number => points.filter((point) => point === 'before pull image').length;

    const second = await openImageHost(directory, [open], { name: 'host-b' });
    t.teardown(() => second.close());
    (await second.builder.bring(source, { accountId })).release();
    t.is(pulls(), 0);

    const stored = join(
      directory,
      'images',
      `${image.digest.replace(':', '-')}-${hostArchitecture}`,
    );
    const [blob = ''] = image.blobs.slice(1).map((layer) => layer.toString('latin1'));
    for (const name of await readdir(join(stored, 'blobs/sha256'))) {
      const path = join(stored, 'blobs/sha256', name);
      if ((await readFile(path, 'latin1')) === blob) await writeFile(path, fileLayer('other').blob);
    }
    const third = await openImageHost(directory, [open], { name: 'host-c' });
    t.teardown(() => third.close());
    const held = await third.builder.bring(source, { accountId, tree: true });
    t.is(pulls(), 1);
    t.deepEqual(await readdir(held.image.tree), ['regional']);
    held.release();
  },
);

test.serial('a host that builds none for callers gives them what the region has', async (t) => {
  const [image, own] = [imageOf([fileLayer('elsewhere')]), imageOf([fileLayer('own')])];
  const source = { reference: await open.push('elsewhere', 'one', image) };
  const fixed = { reference: `${open.name}/elsewhere@${image.digest}`, digest: image.digest };
  const second = await openImageHost(directory, [open], { name: 'host-e', buildsMax: 0 });
  t.teardown(() => second.close());
  for (const each of [source, fixed]) {
    const bringing = second.builder.bring(each, { accountId });
    const refusal = await t.throwsAsync(bringing, { instanceOf: AppError });
    t.is(refusal.code, 'not_enabled');
  }
  (await host.builder.bring(source, { accountId })).release();
  (await second.builder.bring(fixed, { accountId })).release();
  const reference = await open.push('own', 'one', own);
  (await second.builder.bring({ reference }, { accountId: HOST_ACCOUNT })).release();
  t.is(second.load.max, 0);
});

test.serial('a build for the region brings back what only its host has', async (t) => {
  const image = imageOf([fileLayer('lost')]);
  const source = { reference: await closed.push('lost', 'one', image), credentials: login };
  const region = new RegionStore(regionStorage(directory), 'host-a', hostArchitecture);
  const inRegion = async (): Promise<boolean> => (await region.find(image.digest)) !== undefined;
  const points: string[] = [];
  interceptFailpoints(async (point) => void points.push(point));
  (await host.builder.bring(source, { accountId })).release();
  await region.remove(image.digest);
  (await host.builder.bring(source, { accountId })).release();
  t.false(await inRegion(), 'others need it on this host alone');
  for (const forRegion of [true, true]) {
    (await host.builder.bring(source, { accountId, forRegion })).release();
    t.true(await inRegion());
  }
  const count = (point: string): number => points.filter((each) => each === point).length;
  t.is(count('before pull image'), 2);
  t.is(count('before unpack image'), 1);
});

test.serial(
  'a host that cannot unpack an image leaves it to the others of its region',
  async (t) => {
    const image = imageOf([fileLayer('kept')]);
    const reference = await open.push('kept', 'one', image);
    (await host.builder.bring({ reference }, { accountId })).release();
    const source = { reference: `${open.name}/kept@${image.digest}`, digest: image.digest };
    const points: string[] = [];
    let isBroken = true;
    interceptFailpoints(async (point) => {
      points.push(point);
      if (isBroken && point === 'before unpack image') throw new Error('no space left');
    });
    const second = await openImageHost(directory, [open], { name: 'host-d' });
    t.teardown(() => second.close());
    await t.throwsAsync(second.builder.bring(source, { accountId }), { instanceOf: ImageFailure });
    isBroken = false;
    (await second.builder.bring(source, { accountId })).release();
    t.false(points.includes('before pull image'));
  },
);

test.serial('what cannot be built says why', async (t) => {
  const [, port = ''] = open.name.split(':');
  for (const [reference, reason, says] of [
    [`${open.name}/missing:one`, 'invalid_source', /has no such image/u],
    [`${open.name}/plain:missing`, 'invalid_source', /has no such image/u],
    [`127.0.0.2:${port}/plain:one`, 'interrupted', /could not be read/u],
    [
      `localhost.localdomain:${port}/plain:one`,
      'invalid_source',
      /builds may reach|there is no host/u,
    ],
    ['10.0.0.1/plain:one', 'invalid_source', /10.0.0.1 has no address that builds may reach/u],
    ['169.254.169.254/plain:one', 'invalid_source', /builds may reach/u],
  ] as const) {
    const failure = await t.throwsAsync(host.builder.bring({ reference }, { accountId }), {
      instanceOf: ImageFailure,
    });
    t.is(failure.reason, reason, reference);
    t.regex(failure.message, says, reference);
  }
});

test.serial('an image that this host cannot have says why', async (t) => {
  const { archive } = fileLayer('zstd');
  const compressed = { archive, blob: zstdCompressSync(archive) };
  const Env = Array.from({ length: 1025 }, (_, index) => `A${index}=`);
  for (const [name, image, says] of [
    ['zstd', imageOf([compressed], { compression: 'zstd' }), /tar\+zstd are not supported/u],
    ['variables', imageOf([fileLayer('x')], { config: { Env } }), /more than 1024 variables/u],
  ] as const) {
    const reference = await open.push('unfit', name, image);
    const failure = await t.throwsAsync(host.builder.bring({ reference }, { accountId }), {
      instanceOf: ImageFailure,
    });
    t.is(failure.reason, 'invalid_source', name);
    t.regex(failure.message, says);
  }
});

test.serial('a build that nobody waits for any more leaves nothing', async (t) => {
  for (const point of [
    'before pull image',
    'after pull image',
    'before unpack image',
    'before place image',
  ]) {
    const reference = await open.push('given-up', 'one', imageOf([fileLayer(point)]));
    const leaving = new AbortController();
    interceptFailpoints(async (reached) => {
      if (reached === point) leaving.abort(new Error('left'));
    });
    await t.throwsAsync(host.builder.bring({ reference }, { accountId, signal: leaving.signal }), {
      message: 'left',
    });
    interceptFailpoints(undefined);
    (await host.builder.bring({ reference }, { accountId })).release();
    const left = [
      ...(await readdir(join(host.dataDir, 'images'))),
      ...(await readdir(join(directory, 'images'))),
    ];
    t.deepEqual(
      left.filter((name) => name.startsWith('.')),
      [],
      point,
    );
  }
});

/** Where the host unpacks an image at present; resolves as soon as that is mounted. */
async function unpackingAt(): Promise<string> {
  for (;;) {
    const mounts = await readFile('/proc/self/mountinfo', 'utf8');
    const places = mounts.split('\n').map((line) => line.split(' ')[4] ?? '');
    const place = places.find((at) => at.startsWith(host.dataDir) && at.endsWith('/unpacking'));
    if (place !== undefined) return place;
    await setImmediate();
  }
}

test.serial('an image is finished once nothing uses its file system any more', async (t) => {
  const content = randomBytes(16 * 2 ** 20);
  const reference = await open.push('used', 'one', imageOf([layerOf([{ name: 'file', content }])]));
  const building = host.builder.bring({ reference }, { accountId });
  const place = await unpackingAt();
  await using used = await openFile(place);
  const awaited = `await ${join(dirname(place), 'root.ext4')}`;
  const isAwaited = async (): Promise<boolean> =>
    (await processesMarked(dirname(place))).some((line) => line.includes(awaited));
  await waitFor('the build to wait', isAwaited, 20_000);
  await used.close();
  const held = await building;
  const { stdout } = await execute('dumpe2fs', ['-h', held.image.rootDisk]);
  held.release();
  t.regex(stdout, /^Reserved block count:\s+0$/mu);
  t.notRegex(stdout, /needs_recovery/u);
});
