/*
 * Sandboxes on images of a registry on loopback, as virtual machines and as containers: waiting for
 * the image, over a kill of the agent, too; its USER, WORKDIR and ENV; images that cannot be had.
 */
import { join } from 'node:path';
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { createBucketDisk, ownBuckets } from '../helpers/buckets.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import {
  hostArchitecture,
  imageOf,
  layerOf,
  type TestLayer,
  TestRegistry,
} from '../helpers/registry.ts';
import {
  type ApiSandbox,
  beginExec,
  containerSettings,
  createSandbox,
  execIn,
  findSandbox,
  getSandbox,
  outputOf,
  removeSandbox,
  sandboxPath,
  sandboxSettings,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { findSecrets, programsIn } from '../helpers/secrets-in-processes.ts';
import { listenSilently, type SilentServer } from '../helpers/silent-server.ts';
import { Stack } from '../helpers/stack.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';
import { tinyLayer } from '../helpers/tiny-image.ts';
import { newDiskUser } from '../helpers/tools.ts';
import { waitFor } from '../helpers/wait.ts';

interface Context {
  readonly stack: Stack;
  readonly registry: TestRegistry;
  readonly tiny: TestLayer;
  readonly silent: SilentServer;
}

const test = anyTest as TestFn<Context>;
const runtimes = { 'virtual machine': sandboxSettings, container: containerSettings };
type Runtime = keyof typeof runtimes;
const both = ['virtual machine', 'container'] as const;
const vm = ['virtual machine'] as const;
const container = ['container'] as const;
const config = { User: 'node', WorkingDir: '/srv/app', Env: ['FROM=image', 'BOTH=image'] };

const cleanUps = new AsyncDisposableStack();
const stacks = new Map<string, Stack>();

test.before(async (t) => {
  const { path } = cleanUps.use(await temporaryDirectory());
  const registry = await TestRegistry.start(path, 'registry');
  cleanUps.defer(() => registry.stop());
  const silent = await listenSilently();
  cleanUps.defer(() => silent.end());
  const tiny = await tinyLayer(join(path, 'tree'), 'tiny');
  const commands = imageOf([await tinyLayer(join(path, 'commands'), 'tiny', ['bash'])], { config });
  const execImage = await registry.push('host/commands', '1', commands);
  for (const [name, settings] of Object.entries(runtimes)) {
    const stack = await Stack.start({
      ...settings(),
      IMAGE_REGISTRIES: `${registry.url},http://${silent.name}`,
      ...(await ownBuckets()),
      SANDBOX_PREWARMED: '2',
      ...(name === 'container' ? { EXEC_IMAGE: execImage } : {}),
    });
    cleanUps.defer(() => stack.stop());
    stacks.set(name, stack);
  }
  Object.assign(t.context, { registry, tiny, silent });
});

test.after.always(() => cleanUps.disposeAsync());

/** A test for each of these runtimes, which take turns. */
function each(
  names: readonly Runtime[],
  title: string,
  body: (t: ExecutionContext<Context>, api: ApiClient, stack: Stack) => Promise<void>,
): void {
  for (const name of names) {
    test.serial(`${name}: ${title}`, async (t) => {
      const stack = stacks.get(name);
      if (stack === undefined) return t.fail('it has no stack');
      await body(t, await stack.newClient(), stack);
    });
  }
}

const show = (sandbox: ApiSandbox): string => JSON.stringify(sandbox);

each(
  both,
  'a tag is built on the way and pinned, and its processes start as it says',
  async (t, api) => {
    const { registry, tiny } = t.context;
    const image = imageOf([tiny, layerOf([{ name: 'etc/layer', content: 'second' }])], { config });
    const base = await registry.push('team/app', 'one', image);
    const pending = await api.data<ApiSandbox>('POST', '/api/sandboxes', {
      ...{ base_image: base, mem_size_mib: 256, env: { BOTH: 'sandbox', OWN: 'yes' } },
    });
    t.is(pending.status, 'pending');
    t.is(pending.base_image, base);
    const id = pending.sandbox_id;
    const sandbox = await settledSandbox(api, id);
    t.is(sandbox.status, 'running', show(sandbox));
    t.like(sandbox, { image_digest: image.digest, platform: hostArchitecture });
    t.false('image' in sandbox);
    const command = 'cat /marker /etc/layer; id -un; pwd; echo $HOME $FROM $BOTH $OWN $REQUEST';
    const { stdout = '' } = await execIn(api, id, command, { env: { REQUEST: 'too' } });
    t.is(stdout.trim(), 'tinysecondnode\n/srv/app\n/home/node image sandbox yes too');

    const { sandbox_id: forkId } = await api.data<ApiSandbox>(
      'POST',
      `${sandboxPath(id)}/fork`,
      {},
    );
    const fork = await settledSandbox(api, forkId);
    t.like(fork, { status: 'running', image_digest: image.digest }, show(fork));
    t.is((await outputOf(api, forkId, 'id -un; cat /marker')).trim(), 'node\ntiny');
    await removeSandbox(api, forkId);

    await api.data('POST', `${sandboxPath(id)}/pause`);
    await settledSandbox(api, id);
    await api.data('POST', `${sandboxPath(id)}/resume?wait=true`);
    t.is((await outputOf(api, id, 'id -un')).trim(), 'node');
    await removeSandbox(api, id);
  },
);

each(container, 'what a tag means is asked again at each creation', async (t, api) => {
  const { registry, tiny } = t.context;
  const digests = [];
  for (const content of ['first', 'second']) {
    const image = imageOf([tiny, layerOf([{ name: 'etc/version', content }])]);
    const base = await registry.push('team/moving', 'latest', image);
    const { sandbox_id: id } = await createSandbox(api, { base_image: base });
    t.is((await outputOf(api, id, 'cat /etc/version')).trim(), content);
    const { image_digest: digest } = (await getSandbox(api, id)) as { image_digest?: string };
    t.is(digest, image.digest);
    digests.push(digest);
    await removeSandbox(api, id);
  }
  t.is(new Set(digests).size, 2);
});

each(both, 'a sandbox waits for its image over a kill of the agent', async (t, api, stack) => {
  const { registry, tiny } = t.context;
  const unique = layerOf([{ name: 'etc/unique', content: stack.directory }]);
  const base = await registry.push('team/slow', 'latest', imageOf([tiny, unique]));
  const { name, sandbox_id: id } = await api.data<ApiSandbox>('POST', '/api/sandboxes', {
    ...{ base_image: base, mem_size_mib: 256 },
  });
  await stack.agent.stop('SIGKILL');
  await stack.startAgent();
  const sandbox = await settledSandbox(api, id);
  t.is(sandbox.status, 'running', show(sandbox));
  t.is((await findSandbox(api, name))?.sandbox_id, id);
  t.is((await outputOf(api, id, 'cat /etc/unique')).trim(), stack.directory);
  await removeSandbox(api, id);
});

each(vm, 'an image that is not there fails its sandbox, which says why', async (t, api) => {
  const { registry } = t.context;
  const base = `${registry.name}/team/missing:1`;
  const { sandbox_id: id } = await api.data<ApiSandbox>('POST', '/api/sandboxes?wait=true', {
    base_image: base,
  });
  const failed = await settledSandbox(api, id);
  t.like(failed, { status: 'failed', exit_reason: 'image_failed' }, show(failed));
  t.regex(failed.exit_message ?? '', /team\/missing/u);
  await api.data('POST', `${sandboxPath(id)}/start`);
  t.is((await settledSandbox(api, id)).status, 'failed');
  t.is((await api.call('DELETE', sandboxPath(id))).status, 204);
});

each(container, 'an image of another platform fails its sandbox', async (t, api) => {
  const { registry, tiny } = t.context;
  const image = imageOf([tiny], { architecture: 'riscv64' });
  const base = await registry.push('team/foreign', '1', image);
  const { sandbox_id: id } = await api.data<ApiSandbox>('POST', '/api/sandboxes', {
    base_image: base,
  });
  const failed = await settledSandbox(api, id);
  t.like(failed, { status: 'failed', exit_reason: 'image_failed' }, show(failed));
  t.regex(failed.exit_message ?? '', /platform|riscv64/u);
  await removeSandbox(api, id);
});

each(
  both,
  'an image without a shell runs, and its commands say what is missing',
  async (t, api) => {
    const { registry } = t.context;
    const only = layerOf([{ name: 'file', content: 'text' }]);
    const base = await registry.push('team/scratch', '1', imageOf([only]));
    const { sandbox_id: id } = await createSandbox(api, { base_image: base });
    const { body } = await beginExec(api, id, 'true', { wait: true });
    t.like(body.data, { status: 'failed' });
    t.regex(body.data.exit_reason ?? '', /its image has no \/bin\/sh/u);
    await removeSandbox(api, id);
  },
);

each(container, 'a USER that the image does not list is told by its commands', async (t, api) => {
  const { registry, tiny } = t.context;
  const base = await registry.push('team/user', '1', imageOf([tiny], { config: { User: 'ann' } }));
  const { sandbox_id: id } = await createSandbox(api, { base_image: base });
  const { body } = await beginExec(api, id, 'true', { wait: true });
  t.like(body.data, { status: 'failed' });
  t.regex(body.data.exit_reason ?? '', /no such user/u);
  await removeSandbox(api, id);
});

test.serial('commands on disks run in EXEC_IMAGE, with its variables', async (t) => {
  const api = await stacks.get('container')?.newClient();
  if (api === undefined) return t.fail('there is no stack');
  const { id } = await createDisk(api);
  const { stdout, stderr } = await exec(api, id, 'cat /marker; echo $FROM; id -un; pwd');
  t.is(stdout, 'tinyimage\nroot\n/mnt/service\n', stderr);
});

test.serial('an agent whose EXEC_IMAGE has no bash does not start, and says so', async (t) => {
  const { registry, tiny } = t.context;
  const base = await registry.push('host/bare', '1', imageOf([tiny]));
  const stack = stacks.get('container');
  if (stack === undefined) return t.fail('there is no stack');
  const node = await stack.addAgent({ EXEC_IMAGE: base });
  await t.throwsAsync(node.start());
  const log = await node.daemon.readLog();
  t.regex(log, /EXEC_IMAGE .*host\/bare:1 cannot be used: commands run in bash/u);
  // The next agent of the host clears away what that one left.
  const { AGENT_DATA_DIR = '' } = node.environment;
  await (await stack.addAgent({ EXEC_IMAGE: '', AGENT_DATA_DIR })).start();
});

const create = (client: ApiClient, imageId: string) =>
  client.call<{ code: string }>('POST', '/api/sandboxes', { image_id: imageId });

/** Has an image built. @returns its id, when the build has ended */
async function build(api: ApiClient, input: object): Promise<string> {
  const { image_id: imageId } = await api.data<{ image_id: string }>('POST', '/api/images', input);
  await waitFor('the build', async () => {
    const image = await api.data<{ status: string }>('GET', `/api/images/${imageId}`);
    return image.status !== 'building';
  });
  return imageId;
}

each(
  both,
  'a built image is chosen by its id, and its next sandbox is prewarmed',
  async (t, api, stack) => {
    const { registry, tiny } = t.context;
    const image = imageOf([tiny], { config });
    const imageId = await build(api, { source: await registry.push('team/built', '1', image) });
    await registry.stop(); // Nobody is asked for what the host has.
    for (const origin of ['template', 'prewarmed'] as const) {
      const { sandbox_id: id } = await createSandbox(api, { image_id: imageId });
      t.is((await outputOf(api, id, 'id -un')).trim(), 'node');
      const shown = (await getSandbox(api, id)) as ApiSandbox & { image_digest?: string };
      t.is(shown.image_digest, image.digest, origin);
      await removeSandbox(api, id);
      if (origin === 'prewarmed') break;
      await waitFor('a prewarmed machine', async () =>
        (await stack.agent.readLog())
          .split('\n')
          .some((line) => line.includes('prewarmed:started')),
      );
    }
    registry.daemon.start();
    await waitFor('the registry', () =>
      fetch(`${registry.url}/v2/`).then(
        ({ ok }) => ok,
        () => false,
      ),
    );
  },
);

each(
  container,
  'an image of no successful build, or of another account, makes no sandbox',
  async (t, api, stack) => {
    const { registry, tiny } = t.context;
    t.like(await create(api, 'f'.repeat(64)), { status: 404, body: { code: 'not_found' } });
    const missing = await build(api, { source: `${registry.name}/team/nothing:1` });
    t.like(await create(api, missing), { status: 409, body: { code: 'image_not_ready' } });
    const source = await registry.push('team/private', '1', imageOf([tiny]));
    const auth = { username: 'ann', password: 'secret' };
    const own = await build(api, { source, registry_auth: auth });
    t.like(await create(await stack.newClient(), own), {
      status: 404,
      body: { code: 'not_found' },
    });
    const { sandbox_id: id } = await createSandbox(api, { image_id: own });
    await removeSandbox(api, id);
    const twice = { image_id: own, base_image: source };
    t.is((await api.call('POST', '/api/sandboxes', twice)).status, 400);
  },
);

const RULE = { target: 'api.test', transform: { headers: { authorization: 'Bearer a-secret' } } };
/** Programs that the test looks at; MainThread is the egress proxy. */
const PROGRAMS = ['guard', 'hydrate', 'dnsmasq', 'MainThread', 'skopeo', 'init'];
const OF_RUNTIME = {
  'virtual machine': ['shim', 'serve-disks', 'ganesha.nfsd'],
  container: ['container-shim', 'guest'],
};

for (const runtime of both) {
  each([runtime], 'no program has a secret of the cluster', async (t, api, stack) => {
    const { silent } = t.context;
    const disk = await createBucketDisk(api, await newDiskUser(stack, api));
    const { sandbox_id: id } = await createSandbox(api, {
      mounts: [{ disk_id: disk.id }],
      network: { egress: { default: 'deny', allow: [RULE] } },
    });
    await api.data('POST', '/api/images', { source: `${silent.name}/${runtime[0]}:1` });
    await waitFor('all programs', async () => {
      const seen = await programsIn(stack.environment['AGENT_CGROUP'] ?? '');
      return [...PROGRAMS, ...OF_RUNTIME[runtime]].every((name) => seen.has(name));
    });
    t.deepEqual(await findSecrets(stack.environment), []);
    await removeSandbox(api, id);
  });
}
