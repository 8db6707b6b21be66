/* CLUSTER_SECRET, ENCRYPTION_KEY and SIGNING_KEYS change node by node, while callers go on. */
import assert from 'node:assert';
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import anyTest, { type TestFn } from 'ava';
import { ApiClient } from '../helpers/api.ts';
import { createDisk, exec, readManifest } from '../helpers/disks.ts';
import { share } from '../helpers/shares.ts';
import { Stack, type StackNode } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const test = anyTest as TestFn<{ stack: Stack; otherControl: StackNode; otherAgent: StackNode }>;

test.before(async (t) => {
  const stack = await Stack.start();
  const otherControl = await stack.addControl();
  const otherAgent = await stack.addAgent();
  await Promise.all([otherControl.start(), otherAgent.start()]);
  Object.assign(t.context, { stack, otherControl, otherAgent });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const SECRETS = ['CLUSTER_SECRET', 'ENCRYPTION_KEY', 'SIGNING_KEYS'] as const;
type Secrets = Record<(typeof SECRETS)[number], string>;

const newSecrets = (): Secrets => ({
  CLUSTER_SECRET: randomBytes(32).toString('base64url'),
  ENCRYPTION_KEY: randomBytes(32).toString('base64'),
  SIGNING_KEYS: randomBytes(32).toString('base64url'),
});

/** A ring of each, in this order. */
const ringsOf = (...secrets: Secrets[]): Secrets => {
  const ring = (name: keyof Secrets): string => secrets.map((each) => each[name]).join(',');
  const [CLUSTER_SECRET, ENCRYPTION_KEY, SIGNING_KEYS] = SECRETS.map(ring);
  assert(CLUSTER_SECRET && ENCRYPTION_KEY && SIGNING_KEYS);
  return { CLUSTER_SECRET, ENCRYPTION_KEY, SIGNING_KEYS };
};

const program = new URL('../../scripts/admin.ts', import.meta.url).pathname;

interface SecretsReport {
  readonly sealsNow: string;
  readonly sealed?: Record<string, Record<string, number>>;
  readonly resealed?: Record<string, number>;
  readonly failed?: readonly { readonly what: string; readonly reason: string }[];
}

const secretsCommand = (
  { environment }: Stack,
  rings: Secrets,
  word: 'status' | 'reseal',
): Promise<{ code: number; report: SecretsReport }> =>
  new Promise((resolve) => {
    const env = { ...environment, ...rings };
    execFile(process.execPath, [program, 'secrets', word], { env }, (error, stdout) => {
      const code = typeof error?.code === 'number' ? error.code : 0;
      resolve({ code, report: JSON.parse(stdout) as SecretsReport });
    });
  });

test('each secret is replaced node by node, and what it protects goes on', async (t) => {
  const { stack, otherControl, otherAgent } = t.context;
  const [control, agent] = [stack.controls[0], stack.agents[0]];
  assert(control !== undefined && agent !== undefined);
  const former = ringsOf(stack.environment as unknown as Secrets);
  const next = newSecrets();
  const api = await stack.newClient();
  const clients = [control, otherControl].map(
    ({ environment }) => new ApiClient(environment['PUBLIC_BASE_URL'] ?? '', api.key),
  );
  const disk = await createDisk(api, { name: 'kept' });
  const hook = { url: 'https://hooks.example.com/berth' };
  t.is((await api.call('POST', '/api/webhooks', hook)).status, 201);
  t.is((await exec(api, disk.id, 'echo shared > file')).exitCode, 0);
  const url = await share(api, disk.id, 'file');

  /** Every control node reaches every host, and the link that was shared at first still works. */
  const check = async (when: string): Promise<void> => {
    for (const [index, client] of clients.entries()) {
      await waitFor(`an exec by node ${index} ${when}`, async () => {
        // A host that has just come back may not be linked to this node yet: that is refused as
        // such.
        const command = `echo ${index}`;
        const path = `/api/disks/${disk.id}/exec`;
        const { status, body } = await client.call('POST', path, { command });
        if (status === 503) return false;
        t.is(status, 200, JSON.stringify(body));
        return true;
      });
      const token = url.split('/').at(-1) ?? '';
      const shared = await fetch(`${client.baseUrl}/api/shared/${token}`);
      t.is(await shared.text(), 'shared\n', `${when}, by node ${index}`);
    }
  };
  /** Each node gets the rings after the one before it is back: versions of them meet each other. */
  const roll = async (rings: Secrets): Promise<void> => {
    for (const node of [otherControl, agent, control, otherAgent]) {
      await node.daemon.stop();
      Object.assign(node.environment, rings);
      await node.start();
    }
  };
  await check('at first');
  await roll(ringsOf(former, next));
  await check('with the next behind the former');
  await roll(ringsOf(next, former));
  await check('with the next first');

  const rings = ringsOf(next, former);
  const before = (await secretsCommand(stack, rings, 'status')).report;
  t.is(before.sealed?.['tokens of disks']?.[before.sealsNow], undefined);
  const wrong = await secretsCommand(stack, ringsOf(next), 'reseal');
  t.is(wrong.code, 1);
  t.is(wrong.report.failed?.length, 2);
  t.regex(wrong.report.failed?.[0]?.reason ?? '', /sealed with another key/u);

  const { code, report } = await secretsCommand(stack, rings, 'reseal');
  t.is(code, 0);
  const tokens = disk.authorizedUsers?.length ?? 0;
  t.like(report.resealed, {
    'tokens of disks': tokens,
    'secrets of webhooks': 1,
    manifests: 1,
  });
  const again = (await secretsCommand(stack, rings, 'reseal')).report.resealed ?? {};
  t.deepEqual([...new Set(Object.values(again))], [0]);
  const after = (await secretsCommand(stack, ringsOf(next), 'status')).report;
  t.deepEqual(after.sealed, {
    'secrets of webhooks': { [after.sealsNow]: 1 },
    'tokens of disks': { [after.sealsNow]: tokens },
    manifests: { [after.sealsNow]: tokens },
  });
  t.is((await readManifest(stack, disk.id)).users.length, tokens);

  // Links that the former key signed last: it stays for as long as they may.
  await roll({ ...ringsOf(next), SIGNING_KEYS: rings.SIGNING_KEYS });
  await check('without the former');
});
