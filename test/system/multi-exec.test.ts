import assert from 'node:assert';
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { ObjectClient } from '../helpers/objects.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient; a: string; b: string }>;

interface ExecData {
  exitCode: number;
  stdout: string;
  stderr: string;
}

interface DelegationData {
  delegations: { clientId: string; inodeId: number; path: string; isPending: boolean }[];
}

test.before(async (t) => {
  t.context.stack = await Stack.start();
  t.context.api = await t.context.stack.newClient();
  for (const name of ['a', 'b'] as const) {
    const disk = await t.context.api.data<{ id: string }>('POST', '/api/disks', { name });
    t.context[name] = disk.id;
  }
  const { api, a } = t.context;
  const command = [
    'mkdir -p sub/deep plain && echo inner > sub/deep/file && echo top > top',
    'ln -s / root-link && ln -s ../.. sub/up && ln -s sub inner-link && ln -s /etc etc-link',
  ].join(' && ');
  await api.data('POST', `/api/disks/${a}/exec`, { command });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

test('several disks are seen at their paths, with the mount root as working directory', async (t) => {
  const { api, a, b } = t.context;
  const result = await api.data<ExecData>('POST', '/api/exec', {
    disks: { 'data/in': a, out: { disk: b, readOnly: false, conditional: true } },
    command: 'pwd; cat data/in/top; cp data/in/top out/copied; ls',
  });
  t.is(result.stdout, '/mnt/service\ntop\ndata\nout\n');
  const copied = await api.data<ExecData>('POST', `/api/disks/${b}/exec`, {
    command: 'cat copied',
  });
  t.is(copied.stdout, 'top\n');
});

test('a read-only disk refuses writes with EROFS', async (t) => {
  const { api, a } = t.context;
  const result = await api.data<ExecData>('POST', '/api/exec', {
    disks: { ro: { disk: a, readOnly: true }, rw: a },
    command: 'touch ro/x; touch rw/written && cat ro/top && ls ro/written',
  });
  t.regex(result.stderr, /Read-only file system/u);
  t.is(result.stdout, 'top\nro/written\n');
});

test('a subdirectory shows only its own contents', async (t) => {
  const { api, a } = t.context;
  const result = await api.data<ExecData>('POST', '/api/exec', {
    disks: { d: { disk: a, subdirectory: 'sub/deep' }, e: { disk: a, subdirectory: 'inner-link' } },
    command: 'cat d/file; ls d/.. ; ls e/deep',
  });
  t.is(result.stdout, 'inner\nd\ne\nfile\n');
});

const refuses = test.macro({
  async exec(t, body: (ids: { a: string; b: string }) => unknown, status: number, text: RegExp) {
    const { api, a, b } = t.context as { api: ApiClient; a: string; b: string };
    const reply = await api.call('POST', '/api/exec', body({ a, b }));
    t.is(reply.status, status);
    t.regex(reply.body.error, text);
  },
  title: (given = '') => `a multi-disk exec is refused: ${given}`,
});

const run = (disks: unknown) => ({ disks, command: 'true' });
test('no disks', refuses, () => run({}), 400, /disks/u);
test('no disks field', refuses, () => ({ command: 'true' }), 400, /disks/u);
test('no command', refuses, ({ a }) => ({ disks: { a } }), 400, /command/u);
test('empty key', refuses, ({ a }) => run({ '': a }), 400, /empty/u);
test('absolute key', refuses, ({ a }) => run({ '/a': a }), 400, /absolute/u);
test('dot key', refuses, ({ a }) => run({ './a': a }), 400, /segment/u);
test('dot-dot key', refuses, ({ a }) => run({ 'a/../../b': a }), 400, /segment/u);
test('trailing slash', refuses, ({ a }) => run({ 'a/': a }), 400, /empty segment/u);
test('NUL in a key', refuses, ({ a }) => run({ 'a\0': a }), 400, /NUL/u);
test('line break before a bad value', refuses, () => run({ 'a\nb': { disk: 7 } }), 400, /disks/u);
test('nested keys', refuses, ({ a, b }) => run({ a, 'a/b': b }), 400, /lies within/u);
test('malformed disk id', refuses, () => run({ a: 'dsk-1' }), 400, /disks/u);
test('unknown disk', refuses, ({ a }) => run({ a, b: `dsk-${'0'.repeat(16)}` }), 404, /not found/u);
test(
  'subdirectory with dot-dot',
  refuses,
  ({ a }) => run({ a: { disk: a, subdirectory: '../x' } }),
  400,
  /segment/u,
);
test(
  'subdirectory that a link leads out of',
  refuses,
  ({ a }) => run({ a: { disk: a, subdirectory: 'etc-link' } }),
  400,
  /leads out/u,
);
test(
  'subdirectory that climbs out through a link',
  refuses,
  ({ a }) => run({ a: { disk: a, subdirectory: 'sub/up/etc' } }),
  400,
  /leads out/u,
);
test(
  'subdirectory that is missing',
  refuses,
  ({ a }) => run({ a: { disk: a, subdirectory: 'nowhere' } }),
  400,
  /does not exist/u,
);
test(
  'subdirectory that is a file',
  refuses,
  ({ a }) => run({ a: { disk: a, subdirectory: 'top' } }),
  400,
  /does not exist/u,
);
test(
  'read-only with checkouts',
  refuses,
  ({ a }) => run({ a: { disk: a, readOnly: true, checkoutPaths: ['top'] } }),
  400,
  /read-only/u,
);
test(
  'checkout path with dot-dot',
  refuses,
  ({ a }) => run({ a: { disk: a, checkoutPaths: ['..'] } }),
  400,
  /segment/u,
);
test(
  'checkout path that is missing',
  refuses,
  ({ a }) => run({ a: { disk: a, checkoutPaths: ['nowhere'] } }),
  400,
  /does not exist/u,
);
test(
  'the same key twice',
  refuses,
  ({ a, b }) => `{"disks":{"x":"${a}","x":"${b}"},"command":"true"}`,
  400,
  /occurs twice/u,
);

/**
 * Runs a command that has `held/…` checked out until the work is done; that work includes a plain
 * command, which no checkout keeps from writing.
 */
async function whileHeld(
  api: ApiClient,
  disk: string,
  mount: object,
  work: () => Promise<void>,
): Promise<void> {
  const holding = api.call('POST', '/api/exec', {
    disks: { held: { disk, ...mount }, whole: { disk, conditional: true } },
    command: 'until [ -e whole/done ]; do sleep 0.02; done; rm whole/done',
  });
  try {
    await waitFor('the delegations', async () => {
      const path = `/api/disks/${disk}/delegations`;
      const { delegations } = await api.data<DelegationData>('GET', path);
      return delegations.length > 0 && delegations.every(({ isPending }) => !isPending);
    });
    await work();
  } finally {
    await api.call('POST', `/api/disks/${disk}/exec`, { command: 'touch done' });
  }
  assert.equal((await holding).status, 200);
}

async function newDisk(api: ApiClient, name: string, command: string): Promise<string> {
  const { id } = await api.data<{ id: string }>('POST', '/api/disks', { name });
  await api.data<ExecData>('POST', `/api/disks/${id}/exec`, { command });
  return id;
}

const statusOf = async (api: ApiClient, disk: string, mount: object): Promise<number> => {
  const disks = { d: { disk, ...mount } };
  return (await api.call('POST', '/api/exec', { disks, command: 'true' })).status;
};

test('a checkout excludes checkouts of its parents, of what lies beneath it, and of other names', async (t) => {
  const { api } = t.context;
  const tree = 'mkdir -p dir/sub/deep dir/beside other && touch dir/sub/file dir/linked';
  const links = 'ln dir/linked other/hard && ln -s ../dir/sub other/soft';
  const disk = await newDisk(api, 'checkouts', `${tree} && ${links}`);
  const checkoutPaths = ['dir/sub', 'dir/linked'];
  await whileHeld(api, disk, { checkoutPaths }, async () => {
    const taken = ['dir/sub', 'dir', 'dir/sub/file', 'dir/sub/deep', 'other/soft/file'];
    for (const path of [...taken, 'other/hard']) {
      t.is(await statusOf(api, disk, { checkoutPaths: [path] }), 409, path);
    }
    t.is(await statusOf(api, disk, { subdirectory: 'dir', checkoutPaths: ['sub'] }), 409);
    t.is(await statusOf(api, disk, { queueMs: 1 }), 504);
    t.is(await statusOf(api, disk, { checkoutPaths: ['dir/beside', 'done-not-there'] }), 400);
    t.is(await statusOf(api, disk, { checkoutPaths: ['dir/beside'] }), 200);
  });
  t.is(await statusOf(api, disk, { checkoutPaths: ['dir', 'other/hard'] }), 200);
});

test('a checkout stays with its path and with what it holds when that is renamed', async (t) => {
  const { api } = t.context;
  const disk = await newDisk(api, 'renames', 'mkdir -p dir/sub/deep elsewhere beside');
  await whileHeld(api, disk, { checkoutPaths: ['dir/sub'] }, async () => {
    await api.data<ExecData>('POST', `/api/disks/${disk}/exec`, {
      command: 'mv dir/sub elsewhere/moved && mkdir dir/sub dir/sub/deep',
    });
    for (const path of ['dir/sub', 'dir/sub/deep', 'dir', 'elsewhere/moved/deep', 'elsewhere']) {
      t.is(await statusOf(api, disk, { checkoutPaths: [path] }), 409, path);
    }
    t.is(await statusOf(api, disk, { checkoutPaths: ['beside'] }), 200);
  });
});

test('checkouts bind neither commands without one nor conditional ones nor object requests', async (t) => {
  const { api } = t.context;
  const disk = await newDisk(api, 'writers', 'mkdir dir');
  await whileHeld(api, disk, { queueMs: 1000 }, async () => {
    const plain = await api.data<ExecData>('POST', '/api/exec', {
      disks: { d: disk },
      command: 'echo plain > d/dir/plain',
    });
    t.is(plain.exitCode, 0);
    const disks = { d: { disk, conditional: true, queueMs: 2000 } };
    const command = 'echo conditional > d/dir/conditional';
    const conditional = await api.data<ExecData>('POST', '/api/exec', { disks, command });
    t.is(conditional.exitCode, 0);
    const objects = new ObjectClient(api.baseUrl, api.key);
    t.is((await objects.call('PUT', `/${disk}/dir/object`, { body: 'object\n' })).status, 200);
    // Paths of a conditional mount are checked out like anybody else's.
    t.is(await statusOf(api, disk, { conditional: true, checkoutPaths: ['dir'] }), 409);
  });
  const { stdout } = await api.data<ExecData>('POST', `/api/disks/${disk}/exec`, {
    command: 'cat dir/conditional dir/object dir/plain',
  });
  t.is(stdout, 'conditional\nobject\nplain\n');
});

test("commands that check out each other's paths by other names all end", async (t) => {
  const { api } = t.context;
  const disk = await newDisk(api, 'circle', 'mkdir x y && ln -s y a && ln -s x z');
  const runWith = (checkoutPaths: string[]) =>
    api.data<ExecData>('POST', '/api/exec', {
      disks: { d: { disk, checkoutPaths, queueMs: 20_000 } },
      command: 'mkdir d/alone && sleep 0.01 && rmdir d/alone',
    });
  const pairs = [
    ['a', 'x'],
    ['y', 'z'],
    ['x', 'y'],
  ]; // Checkouts are made by name: a before x, y before z.
  const results = await Promise.all([...pairs, ...pairs, ...pairs].map(runWith));
  t.deepEqual(
    results.map(({ exitCode }) => exitCode),
    results.map(() => 0),
  );
});

test('a command may check out 128 paths in all', async (t) => {
  const { api } = t.context;
  const disk = await newDisk(
    api,
    'many',
    `mkdir ${Array.from({ length: 33 }, (_, i) => `d${i}`).join(' ')}`,
  );
  const checkoutPaths = Array.from({ length: 32 }, (_, i) => `d${i}`);
  const four = Object.fromEntries(
    ['a', 'b', 'c', 'd'].map((key) => [key, { disk, checkoutPaths }]),
  );
  const fits = await api.call('POST', '/api/exec', { disks: four, command: 'true' });
  t.is(fits.status, 200);
  const disks = { ...four, e: { disk, checkoutPaths: ['d32'] } };
  const refused = await api.call('POST', '/api/exec', { disks, command: 'true' });
  t.is(refused.status, 400);
  t.regex(refused.body.error, /at most 128/u);
});

test('a checkout is exclusive, visible and waited for', async (t) => {
  const { api, a } = t.context;
  const holding = api.call('POST', '/api/exec', {
    disks: { d: { disk: a, checkoutPaths: ['plain'], conditional: true } },
    command: 'sleep 1; echo first >> d/plain/order',
  });
  const held = await waitFor('the delegation', async () => {
    const { delegations } = await api.data<DelegationData>('GET', `/api/disks/${a}/delegations`);
    return delegations.find(({ path }) => path === 'plain');
  });
  t.false(held.isPending);
  const refused = await api.call('POST', '/api/exec', {
    disks: { d: { disk: a, checkoutPaths: ['plain'] } },
    command: 'true',
  });
  t.is(refused.status, 409);
  t.is(refused.body.code, 'delegation_conflict');
  const impatient = await api.call('POST', '/api/exec', {
    disks: { d: { disk: a, checkoutPaths: ['plain'], queueMs: 50 } },
    command: 'true',
  });
  t.is(impatient.status, 504);
  const waited = await api.data<ExecData>('POST', '/api/exec', {
    disks: { d: { disk: a, checkoutPaths: ['plain'], queueMs: 10_000 } },
    command: 'echo second >> d/plain/order; cat d/plain/order',
  });
  t.is(waited.stdout, 'first\nsecond\n');
  t.is((await holding).status, 200);
  const after = await api.data<DelegationData>('GET', `/api/disks/${a}/delegations`);
  t.deepEqual(after.delegations, []);
});

test('revoking a delegation ends its command at any moment', async (t) => {
  const { api, b } = t.context;
  for (let round = 0; round < 10; round += 1) {
    const holding = api.call('POST', '/api/exec', {
      disks: { d: { disk: b, queueMs: 1000 } },
      command: 'sleep 60',
    });
    const held = await waitFor('the delegation', async () => {
      const { delegations } = await api.data<DelegationData>('GET', `/api/disks/${b}/delegations`);
      return delegations[0];
    });
    await sleep(Math.random() * 40);
    const { clientId, inodeId } = held;
    await api.data('POST', `/api/disks/${b}/revoke-delegation`, { clientId, inodeId });
    const reply = await holding;
    t.is(reply.status, 409, JSON.stringify(reply.body));
    t.is(reply.body.code, 'delegation_revoked');
    const gone = await api.call('POST', `/api/disks/${b}/revoke-delegation`, { clientId, inodeId });
    t.is(gone.status, 404);
  }
});
