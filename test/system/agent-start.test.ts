import { randomBytes } from 'node:crypto';
import anyTest, { type TestFn } from 'ava';
import { otherAgent } from '../helpers/agents.ts';
import type { Daemon, Environment } from '../helpers/daemon.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const test = anyTest as TestFn<{ stack: Stack }>;

test.before(async (t) => {
  t.context.stack = await Stack.start();
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const logHas = (daemon: Daemon, text: string | RegExp) => async (): Promise<boolean> =>
  new RegExp(text, 'u').test(await daemon.readLog());

const refusesToStart = test.macro<[settings: Environment, sentence: RegExp]>({
  async exec(t, settings, sentence) {
    const { stack } = t.context;
    const agent = await otherAgent(stack, `bad-${randomBytes(4).toString('hex')}`, settings);
    agent.start();
    await waitFor('its end', async () => !agent.isRunning);
    await waitFor('its words', logHas(agent, /\n/u));
    const log = await agent.readLog();
    t.regex(log, sentence);
    t.notRegex(log, /^ +at /mu, 'a stack trace says nothing to who set it up');
  },
  title: (given = '') => `an agent refuses to start: ${given}`,
});

test(
  'missing and wrong settings, all named at once',
  refusesToStart,
  { AGENT_PORT: '0', CLUSTER_ID: '', EXEC_SLOTS: 'many' },
  /^agent: configuration: .*CLUSTER_ID.*AGENT_PORT.*EXEC_SLOTS/mu,
);
test(
  'short secret',
  refusesToStart,
  { CLUSTER_SECRET: 'short' },
  /^agent: configuration: CLUSTER_SECRET/u,
);
test(
  'no seccomp profile',
  refusesToStart,
  { SECCOMP_PROFILE: '/nosuchfile' },
  /^agent: .*\/nosuchfile/u,
);
test(
  'no Redis',
  refusesToStart,
  { REDIS_URL: 'redis://127.0.0.1:1' },
  /^agent: Redis cannot be reached, see REDIS_URL, REDIS_SENTINELS or REDIS_CLUSTER_NODES$/mu,
);

test(
  'no storage, where the region has some',
  refusesToStart,
  { STORAGE_DIR: '/nosuchdirectory/storage' },
  /^agent: STORAGE_DIR is not the storage of the region.*Mount the storage/mu,
);

test('a second agent on the same data directory is refused, the first goes on', async (t) => {
  const { stack } = t.context;
  const second = await otherAgent(stack, 'second', {
    AGENT_DATA_DIR: stack.environment['AGENT_DATA_DIR'] ?? '',
  });
  second.start();
  await waitFor('its end', async () => !second.isRunning);
  await waitFor('its words', logHas(second, /another agent runs on this data directory/u));
  const api = await stack.newClient();
  const { id } = await createDisk(api);
  t.is((await exec(api, id, 'echo well')).stdout, 'well\n');
});

const isKeptOut = test.macro<[settings: Environment]>({
  async exec(t, settings) {
    const { stack } = t.context;
    const agent = await otherAgent(stack, `stranger-${randomBytes(4).toString('hex')}`, settings);
    agent.start();
    try {
      await waitFor('the refusal', logHas(agent, /"msg":"link:failed"|"code":1008/u));
      t.false(await logHas(agent, /link:registered/u)());
      t.notRegex(await agent.readLog(), new RegExp(settings['CLUSTER_SECRET'] ?? 'no secret', 'u'));
      const ready = `http://127.0.0.1:${await adminPortOf(agent)}/readyz`;
      const reply = await fetch(ready);
      t.is(reply.status, 503);
      t.regex(await reply.text(), /not registered/u);
    } finally {
      t.is(await agent.stop(), 0);
    }
  },
  title: (given = '') => `control nodes keep out an agent with ${given}`,
});

async function adminPortOf(agent: Daemon): Promise<string> {
  await waitFor('its port', logHas(agent, /"adminPort":\d+/u));
  return /"adminPort":(\d+)/u.exec(await agent.readLog())?.[1] ?? '';
}

test('another secret', isKeptOut, { CLUSTER_SECRET: randomBytes(32).toString('base64url') });
test('another cluster id', isKeptOut, { CLUSTER_ID: 'another-cluster' });

// Serial, hence before the others: a disk of theirs would be made on this host while it stops.
test.serial('the host keeps its id and its disks when its agent restarts', async (t) => {
  const agent = await otherAgent(t.context.stack, 'steady', {});
  const ids: string[] = [];
  for (let round = 0; round < 2; round += 1) {
    agent.start();
    await waitFor('registration', async () => {
      const found = (await agent.readLog()).match(/link:registered/gu) ?? [];
      return found.length > round;
    });
    t.is(await agent.stop(), 0);
    ids.push(
      /"hostId":"(host-[0-9a-f]{12})"/u.exec(
        (await agent.readLog()).split('\n').at(-2) ?? '',
      )?.[1] ?? '',
    );
  }
  t.regex(ids[0] ?? '', /^host-/u);
  t.is(ids[0], ids[1]);
});

test('an agent serves health, readiness and metrics', async (t) => {
  const { stack } = t.context;
  const admin = `http://127.0.0.1:${stack.environment['AGENT_ADMIN_PORT']}`;
  const api = await stack.newClient();
  const { id } = await createDisk(api);
  await exec(api, id, 'true');
  t.is((await fetch(`${admin}/healthz`)).status, 200);
  t.is((await fetch(`${admin}/readyz`)).status, 200);
  t.is((await fetch(`${admin}/nothing`)).status, 404);
  const figures = await (await fetch(`${admin}/metrics`)).text();
  t.regex(
    figures,
    /^berth_job_duration_seconds_count\{.*kind="exec\.run",outcome="ok".*\} [1-9]/mu,
  );
  t.regex(figures, /^berth_execs_running\S* \d+$/mu);
});
