/* Images and registries that mean harm: what they do must end with their build. */
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, open, readdir, rm, stat } from 'node:fs/promises';
import { createServer, type RequestListener, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import test from 'ava';
import { ImageFailure } from '../../../agent/images/image-source.ts';
import { ImageEviction } from '../../../agent/images/image-eviction.ts';
import { digestOf } from '../../../agent/images/oci-layout.ts';
import { RegionStore } from '../../../agent/images/region-store.ts';
import { interceptFailpoints } from '../../../agent/system/failpoint.ts';
import { createLogger } from '../../../shared/log.ts';
import { MiB } from '../../../shared/units.ts';
import { isFull } from '../../helpers/full.ts';
import { type ImageHost, openImageHost } from '../../helpers/image-host.ts';
import { regionStorage } from '../../helpers/region-storage.ts';
import {
  hostArchitecture,
  imageOf,
  layerOf,
  type TestImage,
  TestRegistry,
} from '../../helpers/registry.ts';
import type { TarEntry } from '../../helpers/tar.ts';

const execute = promisify(execFile);
const accountId = 'account';
let directory: string;
let registry: TestRegistry;
let host: ImageHost;
/** A server that no build may reach, and one that plays a registry. */
const served: { inner: string[]; answer: RequestListener } = { inner: [], answer: () => undefined };
let inner: Server;
let played: Server;

const urlOf = (server: Server): string => `127.0.0.1:${(server.address() as AddressInfo).port}`;

async function serve(answer: RequestListener): Promise<Server> {
  const server = createServer(answer);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return server;
}

test.before(async () => {
  directory = await mkdtemp(join(tmpdir(), 'berth-test-images-'));
  registry = await TestRegistry.start(directory, 'open');
  inner = await serve((request, response) => {
    served.inner.push(request.url ?? '');
    response.end('{"token":"x"}');
  });
  played = await serve((request, response) => served.answer(request, response));
  host = await openImageHost(directory, [registry, { url: `http://${urlOf(played)}` }]);
});

test.after.always(async () => {
  await host?.close();
  await registry?.stop();
  for (const server of [inner, played]) server?.close();
  await rm(directory, { recursive: true, force: true });
});

let pushed = 0;

async function pushLayers(...layers: readonly (readonly TarEntry[])[]): Promise<string> {
  pushed += 1;
  return registry.push('hostile', String(pushed), imageOf(layers.map((layer) => layerOf(layer))));
}

async function nothingIsLeft(): Promise<string[]> {
  const places = [join(host.dataDir, 'images'), join(directory, 'images')];
  const names = await Promise.all(places.map((place) => readdir(place).catch(() => [])));
  return names.flat().filter((name) => name.startsWith('.'));
}

test.serial('paths and links that lead out lead nowhere', async (t) => {
  const mark = `berth-owned-${process.pid}`;
  for (const entries of [
    [{ name: `../../../../../../../../tmp/${mark}`, content: 'x' }],
    [{ name: `/tmp/${mark}`, content: 'x' }],
    [
      { name: 'out', type: 'symlink', target: '/tmp' },
      { name: `out/${mark}`, content: 'x' },
    ],
    [
      { name: 'out', type: 'symlink', target: '../../../../../../tmp' },
      { name: `out/${mark}`, content: 'x' },
    ],
    [
      { name: '.', type: 'symlink', target: '/tmp' },
      { name: mark, content: 'x' },
    ],
    [{ name: mark, type: 'link', target: '../../../../../../etc/hostname' }],
    [{ name: mark, type: 'link', target: '/etc/hostname' }],
    [{ name: 'etc', type: 'symlink', target: '/etc' }, { name: 'etc/.wh.hostname' }],
  ] as TarEntry[][]) {
    const links = (await stat('/etc/hostname')).nlink;
    const reference = await pushLayers(entries);
    const held = await host.builder
      .bring({ reference }, { accountId, tree: true })
      .catch((error: unknown) => {
        t.true(error instanceof ImageFailure, String(error));
      });
    held?.release();
    await t.throwsAsync(stat(`/tmp/${mark}`), { code: 'ENOENT' });
    t.is((await stat('/etc/hostname')).nlink, links);
    t.deepEqual(await nothingIsLeft(), []);
  }
});

test.serial('device nodes of an image are dead on the host', async (t) => {
  const reference = await pushLayers([
    { name: 'disk', type: 'block', mode: 0o666, device: [7, 0] },
    { name: 'memory', type: 'char', mode: 0o666, device: [1, 1] },
  ]);
  const held = await host.builder.bring({ reference }, { accountId, tree: true });
  t.teardown(() => held.release());
  for (const name of ['disk', 'memory']) {
    await t.throwsAsync(open(join(held.image.tree, name), 'r'), { code: 'EACCES' });
  }
  await t.throwsAsync(open(join(held.image.tree, 'new'), 'w'), { code: 'EROFS' });
});

test.serial('a bomb ends at its bound and takes no space', async (t) => {
  // 300 kB that unpack to 300 MB, in one file and in many; and nothing but inodes, each with a
  // block.
  const zeros = Buffer.alloc(100 * MiB);
  const empty = Array.from({ length: 20_000 }, (_, index): TarEntry => {
    return { name: `${index}/`, type: 'directory' };
  });
  for (const entries of [
    [{ name: 'a', content: Buffer.concat([zeros, zeros, zeros]) }],
    [1, 2, 3].map((index) => ({ name: String(index), content: zeros })),
    Array.from({ length: 100 }, (_, index) => ({ name: `f${index}`, content: Buffer.alloc(MiB) })),
    ...(isFull ? [empty] : []),
  ]) {
    const reference = await pushLayers(entries);
    const failure = await t.throwsAsync(host.builder.bring({ reference }, { accountId }), {
      instanceOf: ImageFailure,
    });
    t.is(failure.reason, 'invalid_source');
    t.regex(failure.message, /larger than 67108864 bytes/u);
    t.deepEqual(await nothingIsLeft(), []);
  }
});

test.serial('attributes that the host’s kernel acts on are not kept', async (t) => {
  const reference = await pushLayers([
    { name: 'redirected/', type: 'directory', xattrs: { 'trusted.overlay.redirect': '/etc' } },
  ]);
  const held = await host.builder.bring({ reference }, { accountId, tree: true });
  t.teardown(() => held.release());
  const { stdout } = await execute('getfattr', ['-R', '-h', '-d', '-m', '-', held.image.tree]);
  t.is(stdout, '');
});

const digest = `sha256:${'1'.repeat(64)}`;

test.serial('a registry cannot lead a build to addresses that are closed', async (t) => {
  const source = { reference: `${urlOf(played)}/a:b` };
  const answers: RequestListener[] = [
    (_, response) =>
      response.writeHead(307, { location: `http://${urlOf(inner)}/redirected` }).end(),
    (_, response) =>
      response.writeHead(307, { location: `https://${urlOf(inner)}/redirected` }).end(),
    (_, response) =>
      response
        .writeHead(401, {
          'www-authenticate': `Bearer realm="http://${urlOf(inner)}/token",service="s"`,
        })
        .end(),
    (_, response) => response.writeHead(307, { location: 'http://169.254.169.254/latest' }).end(),
  ];
  for (const answer of answers) {
    served.answer = answer;
    await t.throwsAsync(host.builder.bring(source, { accountId }), { instanceOf: ImageFailure });
  }
  t.deepEqual(served.inner, []);
});

/** Has the played registry serve an image under every reference, each blob by this function. */
function play(image: TestImage, sendBlob: (response: ServerResponse, blob: Buffer) => void): void {
  served.answer = (request, response) => {
    const url = request.url ?? '';
    const blob = image.blobs.find((each) => url.endsWith(digestOf(each)));
    if (blob !== undefined) return sendBlob(response, blob);
    response.setHeader('content-type', image.mediaType);
    response.end(url.includes('/manifests/') ? image.manifest : '{}');
  };
}

test.serial('a registry cannot send another image than the digest names', async (t) => {
  const image = imageOf([layerOf([{ name: 'another', content: 'another' }])]);
  play(image, (response, blob) => response.end(blob));
  const named = host.builder.bring({ reference: `${urlOf(played)}/a@${digest}` }, { accountId });
  const failure = await t.throwsAsync(named, { instanceOf: ImageFailure });
  t.regex(failure.message, /sent another manifest/u);
});

test.serial('a layer type that is a name of JavaScript is an unknown one', async (t) => {
  const image = imageOf([layerOf([{ name: 'a', content: 'a' }])]);
  const manifest = image.manifest.replaceAll(/[^"]+layer\.v1\.tar\+gzip/gu, 'constructor');
  play({ ...image, manifest }, (response, blob) => response.end(blob));
  const built = host.builder.bring({ reference: `${urlOf(played)}/strange:a` }, { accountId });
  const failure = await t.throwsAsync(built, { instanceOf: ImageFailure });
  t.regex(failure.message, /layers of type constructor are not supported/u);
});

test.serial('a registry that stops sending holds up no other registry’s build', async (t) => {
  const image = imageOf([layerOf([{ name: 'stalled', content: 'stalled' }])]);
  const reference = await registry.push('stalled', 'one', image);
  const asked = Promise.withResolvers<void>();
  play(image, () => asked.resolve());
  const leaving = new AbortController();
  const stalled = host.builder.bring(
    { reference: `${urlOf(played)}/stalled:one` },
    { accountId: 'another', signal: leaving.signal },
  );
  const left = t.throwsAsync(stalled, { message: 'left' });
  await asked.promise;
  const signal = AbortSignal.timeout(60_000);
  const held = await host.builder.bring({ reference }, { accountId, signal });
  t.is(held.image.digest, image.digest);
  held.release();
  leaving.abort(new Error('left'));
  await left;
});

test.serial('a build that was given up while it waited for a turn can be had again', async (t) => {
  const image = imageOf([layerOf([{ name: 'again', content: 'again' }])]);
  const source = { reference: await registry.push('again', 'one', image), digest: image.digest };
  const asked = Promise.withResolvers<void>();
  play(imageOf([layerOf([{ name: 'first', content: 'first' }])]), () => asked.resolve());
  const leaving = new AbortController();
  const by = { accountId, signal: leaving.signal };
  const first = host.builder.bring({ reference: `${urlOf(played)}/first:one` }, by);
  const firstLeft = t.throwsAsync(first, { message: 'left' });
  await asked.promise; // An account has one of the host's two turns.
  const waiting = new AbortController();
  const waits = host.builder.bring(source, { accountId, signal: waiting.signal });
  const waitsLeft = t.throwsAsync(waits, { message: 'left' });
  await sleep(50);
  waiting.abort(new Error('left'));
  await waitsLeft;
  leaving.abort(new Error('left'));
  await firstLeft;
  (await host.builder.bring(source, { accountId })).release();
});

test.serial('a registry that sends more than it said, or something else, is cut off', async (t) => {
  const manifest = JSON.stringify({
    schemaVersion: 2,
    mediaType: 'application/vnd.oci.image.manifest.v1+json',
    config: { mediaType: 'application/vnd.oci.image.config.v1+json', digest, size: 100 },
    layers: [{ mediaType: 'application/vnd.oci.image.layer.v1.tar+gzip', digest, size: 1000 }],
  });
  let sent = 0;
  served.answer = (request, response) => {
    if (!(request.url ?? '').includes('/blobs/')) {
      response.setHeader('content-type', 'application/vnd.oci.image.manifest.v1+json');
      response.end((request.url ?? '').includes('/manifests/') ? manifest : '{}');
      return;
    }
    const chunk = Buffer.alloc(MiB);
    const more = (): void => {
      if (response.destroyed || sent > 500 * MiB) return void response.end();
      sent += chunk.length;
      if (response.write(chunk)) setImmediate(more);
      else response.once('drain', more);
    };
    more();
  };
  const source = { reference: `${urlOf(played)}/endless:b` };
  await t.throwsAsync(host.builder.bring(source, { accountId }), { instanceOf: ImageFailure });
  t.true(sent < 200 * MiB, `${sent} bytes were sent`);
  served.answer = (request, response) => {
    const isBlob = (request.url ?? '').includes('/blobs/');
    response.setHeader('content-type', 'application/vnd.oci.image.manifest.v1+json');
    // The right length, but another digest.
    response.end(isBlob ? Buffer.alloc(100) : manifest);
  };
  await t.throwsAsync(host.builder.bring(source, { accountId }), { instanceOf: ImageFailure });
  for (const text of [
    '',
    'x',
    '{}',
    '[]',
    '{"manifests":1}',
    '{"layers":[]}',
    '['.repeat(10_000),
  ]) {
    served.answer = (request, response) => {
      response.setHeader('content-type', 'application/vnd.oci.image.manifest.v1+json');
      response.end((request.url ?? '').includes('/manifests/') ? text : '{}');
    };
    await t.throwsAsync(host.builder.bring(source, { accountId }), { instanceOf: ImageFailure });
  }
  t.deepEqual(await nothingIsLeft(), []);
});

test.serial(
  'images that nobody holds go by age and for want of space, the oldest first',
  async (t) => {
    const region = new RegionStore(regionStorage(directory), 'host-a', hostArchitecture);
    for (const { digest: each } of host.store.unused) await host.store.remove(each);
    for (const { digest: each } of await region.list()) await region.remove(each);
    const spaces = {
      own: { freeBytes: 1000, device: 1 },
      region: { freeBytes: 1000, device: 1 },
    };
    const storage = {
      spaceOf: (name: string) => (name === 'own' ? spaces.own : spaces.region),
      reserveBytes: 100,
    };
    const directories = { own: 'own', region: 'region' };
    const log = createLogger('test', {});
    const evictionAfter = (keepMs: number): ImageEviction =>
      new ImageEviction({ store: host.store, region, storage, directories, keepMs, log });
    const references = await Promise.all(
      ['a', 'b', 'c'].map((name) => pushLayers([{ name, content: name }])),
    );
    const digests: string[] = [];
    const held = [];
    for (const reference of references) {
      const brought = await host.builder.bring({ reference }, { accountId });
      digests.push(brought.image.digest);
      held.push(brought);
    }
    const local = (): string[] => host.store.unused.map(({ digest: each }) => each);
    await evictionAfter(60_000).evict();
    held[1]?.release();
    held[2]?.release();
    t.deepEqual(local().toSorted(), digests.slice(1).toSorted());
    for (const space of [spaces.own, spaces.region]) space.freeBytes = 150;
    await evictionAfter(60_000).evict();
    t.is(local().length, 1);
    t.is((await region.list()).length, 3);
    await evictionAfter(60_000).evict();
    await evictionAfter(60_000).evict();
    t.is((await region.list()).length, 2);
    for (const space of [spaces.own, spaces.region]) space.freeBytes = 1000;
    await evictionAfter(-1).evict();
    t.deepEqual(await region.list(), []);
    // The held image has stayed through all of it.
    const again = await host.store.hold(digests[0] ?? '', { tree: true });
    t.deepEqual(await readdir(again?.image.tree ?? ''), ['a']);
    again?.release();
    held[0]?.release();
  },
);

test.serial('a leaked manifest opens no layers of another repository', async (t) => {
  const image = imageOf([layerOf([{ name: 'secret', content: Buffer.from('čaj') }])]);
  const reference = await registry.push('secret', 'one', image);
  const points: string[] = [];
  interceptFailpoints(async (point) => void points.push(point));
  t.teardown(() => interceptFailpoints(undefined));
  const pulls = (): number => points.filter((point) => point === 'before pull image').length;
  (await host.builder.bring({ reference }, { accountId })).release();
  t.is(pulls(), 1);
  served.answer = (request, response) => {
    const { url = '' } = request;
    response.statusCode = url.includes('/blobs/') ? 404 : 200;
    response.setHeader('content-type', image.mediaType);
    response.end(url.includes('/manifests/') ? image.manifest : '{}');
  };
  const leaked = { reference: `${urlOf(played)}/leaked:one` };
  const registries = [registry, { url: `http://${urlOf(played)}` }];
  const second = await openImageHost(directory, registries, { name: 'host-b' });
  t.teardown(() => second.close());
  // The first host has the image, the second one's region does.
  for (const { builder } of [host, second]) {
    await t.throwsAsync(builder.bring(leaked, { accountId: 'spy' }), { instanceOf: ImageFailure });
  }
  // From its own repository nobody pulls it again, on either host.
  const before = pulls();
  for (const { builder } of [host, second, second]) {
    (await builder.bring({ reference }, { accountId: 'friend' })).release();
  }
  t.is(pulls(), before);
  const again = second.builder.bring(leaked, { accountId: 'spy' });
  await t.throwsAsync(again, { instanceOf: ImageFailure });
  // A caller with every layer in another repository proves it by one pull from there.
  const other = { reference: await registry.push('given', 'one', image) };
  const begun = pulls();
  for (const account of ['other', 'third']) {
    (await host.builder.bring(other, { accountId: account })).release();
  }
  t.is(pulls(), begun + 1);
});
