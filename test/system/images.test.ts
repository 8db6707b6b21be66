/* Images from the API to a sandbox, with two control nodes and a real registry. */
import assert from 'node:assert';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import { IMAGE_LIMITS } from '../../agent/images/limits.ts';
import { ApiClient, type ApiReply } from '../helpers/api.ts';
import { dumpRedis } from '../helpers/redis-contents.ts';
import { imageOf, layerOf, type TestImage, TestRegistry } from '../helpers/registry.ts';
import {
  containerSettings,
  createSandbox,
  Failpoints,
  outputOf,
  removeSandbox,
  restartCrashed,
} from '../helpers/sandboxes.ts';
import { listenSilently, type SilentServer } from '../helpers/silent-server.ts';
import { Stack } from '../helpers/stack.ts';
import type { TarEntry } from '../helpers/tar.ts';
import { waitFor } from '../helpers/wait.ts';
import { isFull } from '../helpers/full.ts';

interface ApiImage {
  readonly image_id: string;
  readonly source: string;
  readonly private: boolean;
  readonly status: string;
  readonly digest?: string;
  readonly updated_at: string;
  readonly canonical_source?: string;
  readonly failure_reason?: string;
  readonly failure_message?: string;
  readonly progress?: { readonly step: string };
}

interface Context {
  readonly stack: Stack;
  readonly api: ApiClient;
  readonly points: Failpoints;
  readonly open: TestRegistry;
  readonly closed: TestRegistry;
  readonly silent: SilentServer;
  readonly directory: string;
}
const test = anyTest as TestFn<Context>;

const login = { username: 'someone', password: 'a-password-of-some-length' };

test.before(async (t) => {
  const directory = await mkdtemp(join(tmpdir(), 'berth-test-registry-'));
  const [open, closed] = await Promise.all([
    TestRegistry.start(directory, 'open'),
    TestRegistry.start(directory, 'closed', login),
  ]);
  const silent = await listenSilently();
  const points = new Failpoints(join(process.cwd(), `.local/crash-${process.pid}`));
  const registries = {
    IMAGE_REGISTRIES: `${open.url},${closed.url},http://${silent.name}`,
    IMAGE_BYTES_MAX: '100000000',
  };
  const stack = await Stack.start({ ...containerSettings(), ...registries, ...points.settings });
  await (await stack.addControl()).start();
  Object.assign(t.context, {
    stack,
    points,
    open,
    closed,
    silent,
    directory,
    api: await stack.newClient(),
  });
});

test.after.always(async ({ context: { stack, points, open, closed, silent, directory } }) => {
  silent?.end();
  await points?.disarm();
  await stack?.stop();
  await Promise.all([open?.stop(), closed?.stop()]);
  await points?.takeReached();
  await rm(directory, { recursive: true, force: true });
});

/** A small system, told apart by a file. */
async function system(name: string, config: object = {}): Promise<TestImage> {
  const busybox = layerOf([
    { name: 'bin/', type: 'directory' },
    { name: 'bin/busybox', mode: 0o755, content: await readFile('/bin/busybox') },
    ...['sh', 'cat', 'env', 'pwd', 'id'].map((applet): TarEntry => {
      return { name: `bin/${applet}`, type: 'link', target: 'bin/busybox' };
    }),
    { name: 'etc/', type: 'directory' },
    { name: 'etc/passwd', content: 'root:x:0:0::/:/bin/sh\napp:x:1000:1000::/srv:/bin/sh\n' },
    { name: 'srv/', type: 'directory' },
    ...['dev/', 'proc/', 'sys/', 'tmp/', 'run/'].map((path): TarEntry => {
      return { name: path, type: 'directory' };
    }),
  ]);
  return imageOf([busybox, layerOf([{ name: 'name', content: name }])], { config });
}

const build = (api: ApiClient, body: object): Promise<ApiImage> =>
  api.data('POST', '/api/images', body);

const create = (by: ApiClient, body: object): Promise<ApiReply<{ code: string }>> =>
  by.call('POST', '/api/sandboxes', { mem_size_mib: 256, ...body });

const ended = (api: ApiClient, { image_id: id }: ApiImage): Promise<ApiImage> =>
  waitFor(`image ${id}`, async () => {
    const image = await api.data<ApiImage>('GET', `/api/images/${id}`);
    return image.status !== 'building' && image;
  });

test.serial('an image is built, shown, and used by its id', async (t) => {
  const { api, open } = t.context;
  const image = await system('one', { Env: ['GREETING=hello'], WorkingDir: '/srv', User: 'app' });
  const source = await open.push('system', 'one', image);
  const begun = await build(api, { source });
  t.like(begun, { source, private: false, status: 'building' });
  t.regex(begun.image_id, /^[0-9a-f]{64}$/u);
  const ready = await ended(api, begun);
  t.like(ready, {
    ...{ image_id: begun.image_id, status: 'ready', digest: image.digest },
    canonical_source: `${open.name}/system@${image.digest}`,
  });
  const sandbox = await createSandbox(api, { image_id: ready.image_id });
  t.is(sandbox.base_image, '');
  const command = 'cat /name; echo " $GREETING $(pwd) $(id -u)"';
  t.is(await outputOf(api, sandbox.sandbox_id, command), 'one hello /srv 1000\n');
  await removeSandbox(api, sandbox.sandbox_id);
});

test.serial('requests at several control nodes at once join one build', async (t) => {
  const { api, stack, open, points } = t.context;
  const source = await open.push('system', 'joined', await system('joined'));
  const other = new ApiClient(stack.controls[1]?.environment['PUBLIC_BASE_URL'] ?? '', api.key);
  await points.takeReached();
  const begun = await Promise.all(
    Array.from({ length: 12 }, (_, index) => build(index % 2 === 0 ? api : other, { source })),
  );
  t.is(new Set(begun.map(({ image_id: id }) => id)).size, 1);
  for (const image of begun) t.is((await ended(api, image)).status, 'ready');
  const reached = await points.takeReached();
  t.is(reached.filter((point) => point === 'before publish image').length, 1);
});

test.serial(
  'a tag is built again and a digest is reused; the last good digest stays',
  async (t) => {
    const { api, open } = t.context;
    const [first, second] = [await system('first'), await system('second')];
    const source = await open.push('moving', 'tag', first);
    const image = await ended(api, await build(api, { source }));
    t.is(image.digest, first.digest);
    await open.push('moving', 'tag', second);
    const rebuilding = await build(api, { source });
    t.like(rebuilding, { image_id: image.image_id, status: 'building', digest: first.digest });
    t.is((await ended(api, rebuilding)).digest, second.digest);
    // The same image by its digest is another source, and never changes.
    const fixed = { source: `${open.name}/moving@${first.digest}` };
    t.is((await ended(api, await build(api, fixed))).digest, first.digest);
    t.is((await build(api, fixed)).status, 'ready');

    await open.stop();
    const failed = await ended(api, await build(api, { source }));
    open.daemon.start();
    t.like(failed, { status: 'failed', failure_reason: 'interrupted', digest: second.digest });
    const sandbox = await createSandbox(api, { image_id: image.image_id });
    t.is(await outputOf(api, sandbox.sandbox_id, 'cat /name'), 'second');
    await removeSandbox(api, sandbox.sandbox_id);
  },
);

test.serial(
  'a private image is its account’s alone, and its credentials are kept nowhere',
  async (t) => {
    const { api, stack, closed } = t.context;
    const source = await closed.push('private', 'one', await system('private'));
    const image = await ended(api, await build(api, { source, registry_auth: login }));
    t.like(image, { private: true, status: 'ready', source });
    const open = await ended(api, await build(api, { source }));
    t.not(open.image_id, image.image_id);
    t.like(open, { private: false, status: 'failed', failure_reason: 'invalid_source' });
    const fixed = { source: `${closed.name}/private@${image.digest}`, registry_auth: login };
    const named = await ended(api, await build(api, fixed));
    const again = await ended(api, await build(api, fixed));
    t.like(again, { status: 'ready', digest: image.digest });
    t.true(again.updated_at > named.updated_at, 'it is built again');
    const stranger = await stack.newClient();
    t.is((await stranger.call('GET', `/api/images/${image.image_id}`)).status, 404);
    t.is((await create(stranger, { image_id: image.image_id })).status, 404);
    t.like((await create(api, { image_id: open.image_id })).body, { code: 'image_not_ready' });
    const theirs = await build(stranger, {
      source,
      registry_auth: { ...login, password: 'wrong' },
    });
    t.not(theirs.image_id, image.image_id);
    t.like(await ended(stranger, theirs), { status: 'failed', failure_reason: 'invalid_source' });
    const kept = [
      await dumpRedis(await stack.redisClient()),
      await readFile(join(stack.directory, 'appendonlydir', 'appendonly.aof.1.incr.aof'), 'latin1'),
      ...(await Promise.all([stack.control, stack.agent].map((daemon) => daemon.readLog()))),
    ].join('');
    t.false(kept.includes(login.password));
    const sandbox = await createSandbox(api, { image_id: image.image_id });
    await removeSandbox(api, sandbox.sandbox_id);
  },
);

test.serial('what is wrong with a request is said', async (t) => {
  const { api } = t.context;
  for (const body of [
    {},
    { source: '' },
    { source: 'UPPER CASE' },
    { source: 'debian', registry_auth: {} },
    { source: 'debian', registry_auth: { username: 'a' } },
    { source: 'debian', registry_auth: { username: '', password: 'b' } },
    { source: 'debian', registry_auth: 'a:b' },
  ]) {
    const reply = await api.call<{ code: string }>('POST', '/api/images', body);
    t.like([reply.status, reply.body.code], [400, 'bad_request'], JSON.stringify(body));
  }
  for (const id of ['0'.repeat(64), 'no-id', 'A'.repeat(64)]) {
    t.is((await api.call('GET', `/api/images/${id}`)).status, 404);
  }
  const missing = await ended(api, await build(api, { source: `${t.context.open.name}/no:where` }));
  t.like(missing, { status: 'failed', failure_reason: 'invalid_source' });
  t.true(missing.failure_message?.includes('no such image'));
});

test.serial('an account may have so many builds wait, and no more', async (t) => {
  const { stack, silent } = t.context;
  const api = await stack.newClient();
  const source = (index: number): string => `${silent.name}/never:${index}`;
  const begun = await Promise.all(
    Array.from({ length: IMAGE_LIMITS.imageBuildsWaitingPerAccountMax }, (_, index) =>
      build(api, { source: source(index) }),
    ),
  );
  const refused = await api.call<{ code: string }>('POST', '/api/images', { source: source(99) });
  t.deepEqual([refused.status, refused.body.code], [503, 'no_capacity']);
  t.truthy(refused.headers.get('retry-after'));
  const { image_id: id } = await build(await stack.newClient(), { source: source(100) });
  t.regex(id, /^[0-9a-f]{64}$/u, 'another account');
  silent.end();
  for (const image of begun) {
    t.like(await ended(api, image), { status: 'failed', failure_reason: 'interrupted' });
  }
});

/** Names of what lies where builds work. */
async function leftovers({ stack: { environment } }: Context): Promise<string[]> {
  const directories = [
    join(environment['AGENT_DATA_DIR'] ?? '', 'images'),
    join(environment['STORAGE_DIR'] ?? '', 'images'),
  ];
  const names = await Promise.all(directories.map((directory) => readdir(directory)));
  return names.flat().filter((name) => name.startsWith('.'));
}

test.serial(
  'wherever the agent is killed, the build is interrupted and the next one works',
  async (t) => {
    const { api, open, stack, points } = t.context;
    const attempt = async (name: string): Promise<ApiImage> =>
      build(api, { source: await open.push('killed', name, await system(name)) });
    await points.takeReached();
    await ended(api, await attempt('learning'));
    const known = (await points.takeReached()).filter((point) => /image|pull/u.test(point));
    assert(known.length >= 10, known.join());
    const chosen = ['before place image', 'before keep image for region'];
    for (const point of isFull ? new Set(known) : chosen) {
      await points.arm(point);
      const name = point.replaceAll(' ', '-');
      const begun = await attempt(name);
      await waitFor(`the agent to be killed ${point}`, async () => !stack.agent.isRunning);
      await points.disarm();
      await restartCrashed(stack);
      const interrupted = await api.data<ApiImage>('GET', `/api/images/${begun.image_id}`);
      if (point === 'after publish image') t.is(interrupted.status, 'ready', point);
      else {
        t.like(interrupted, { status: 'failed', failure_reason: 'interrupted' }, point);
        t.regex(interrupted.failure_message ?? '', /agent .* was restarted/u, 'at once');
      }
      const again = await ended(api, await build(api, { source: begun.source }));
      t.is(again.status, 'ready', `${point}: ${again.failure_message}`);
      t.deepEqual(await leftovers(t.context), [], point);
    }
  },
);
