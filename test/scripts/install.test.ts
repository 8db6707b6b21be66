import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { type Env, readEnvFile, writeEnvFile } from '../../scripts/env-file.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';

const checkout = join(import.meta.dirname, '../..');
const NODE_COMPILE_CACHE = join(checkout, '.local/compile-cache');

interface Outcome {
  readonly code: number;
  readonly output: string;
}

const run = (program: string, args: readonly string[]): Promise<Outcome> =>
  new Promise((resolve) => {
    const env = { PATH: process.env['PATH'], NODE_COMPILE_CACHE };
    execFile(program, args, { env }, (error, stdout, stderr) =>
      resolve({ code: Number(error?.code ?? 0), output: stdout + stderr }),
    );
  });
const install = (...args: string[]): Promise<Outcome> =>
  run(process.execPath, [join(checkout, 'scripts/install.ts'), ...args]);
const settingsOf = (root: string, role: string): Promise<Env> =>
  readEnvFile(join(root, `etc/berth/${role}.env`));
/** A file that names a cluster, as `--cluster` takes it. */
async function clusterIn(root: string): Promise<string> {
  const file = join(root, 'cluster.env');
  const secret = 'a'.repeat(40);
  await writeEnvFile(file, {
    ...{ CLUSTER_ID: 'cl-test', CLUSTER_SECRET: secret, REGION: 'self-hosted' },
    ENCRYPTION_KEY: Buffer.alloc(32, 1).toString('base64'),
  });
  return file;
}
const unitIn = (root: string, role: string): string =>
  join(root, `etc/systemd/system/berth-${role}.service`);

const replicated = [
  {
    REDIS_SENTINELS: '10.0.0.1:26379,10.0.0.2:26379,10.0.0.3:26379',
    ...{ REDIS_SENTINEL_NAME: 'berth', REDIS_PASSWORD: 'secret' },
  },
  { REDIS_CLUSTER_NODES: '10.0.0.1:6379,10.0.0.2:6379', REDIS_PASSWORD: 'secret' },
];
for (const redis of replicated) {
  const [way] = Object.keys(redis);
  test(`control nodes of a cluster whose Redis fails over have ${way} from the first`, (t) =>
    installTwice(t, redis));
}

async function installTwice(t: ExecutionContext, redis: Record<string, string>): Promise<void> {
  await using first = await temporaryDirectory();
  await using second = await temporaryDirectory();
  await mkdir(join(first.path, 'etc/berth'), { recursive: true });
  await writeEnvFile(join(first.path, 'etc/berth/control.env'), redis);
  t.is((await install('control', '--root', first.path, '--address', '10.0.0.1')).code, 0);
  const cluster = join(first.path, 'etc/berth/cluster.env');
  const joined = ['--root', second.path, '--address', '10.0.0.2', '--cluster', cluster];
  t.is((await install('control', ...joined)).code, 0);
  for (const root of [first.path, second.path]) {
    t.like(await settingsOf(root, 'control'), redis);
    t.is((await settingsOf(root, 'control'))['REDIS_URL'], undefined);
  }
}

test('three hosts get configurations of one cluster, which control and agent accept', async (t) => {
  await using first = await temporaryDirectory();
  await using second = await temporaryDirectory();
  const [one, two] = [first.path, second.path];
  for (const role of ['redis', 'control', 'agent']) {
    const { code, output } = await install(role, '--root', one, '--address', '10.0.0.1');
    t.is(code, 0, output);
  }
  const cluster = join(one, 'etc/berth/cluster.env');
  const joined = ['--root', two, '--address', '10.0.0.2', '--cluster', cluster];
  t.is((await install('agent', ...joined)).code, 0);

  const [control, agent, other] = await Promise.all([
    settingsOf(one, 'control'),
    settingsOf(one, 'agent'),
    settingsOf(two, 'agent'),
  ]);
  for (const name of ['CLUSTER_ID', 'CLUSTER_SECRET', 'ENCRYPTION_KEY', 'REDIS_URL', 'REGION']) {
    t.truthy(control[name], name);
    t.deepEqual([agent[name], other[name]], [control[name], control[name]], name);
  }
  t.regex(control['REDIS_URL'] ?? '', /^redis:\/\/:[0-9a-f]{48}@10\.0\.0\.1:6379$/u);
  t.is(other['AGENT_PUBLIC_URL'], 'http://10.0.0.2:8710');
  t.is(agent['SIGNING_KEYS'], undefined, 'agents sign nothing for callers');

  const checks = await Promise.all(
    ['control', 'agent'].map((role) =>
      run(process.execPath, [
        join(checkout, `${role}/main.ts`),
        ...['--check', '--config', join(one, `etc/berth/${role}.env`)],
      ]),
    ),
  );
  for (const { code, output } of checks) t.is(code, 0, output);
  for (const name of ['control.env', 'agent.env', 'cluster.env', 'redis.conf']) {
    t.is((await stat(join(one, 'etc/berth', name))).mode & 0o777, 0o600, name);
  }

  const before = await readFile(join(one, 'etc/berth/control.env'), 'utf8');
  t.is((await install('control', '--root', one, '--address', '10.0.0.9')).code, 0);
  t.is(await readFile(join(one, 'etc/berth/control.env'), 'utf8'), before, 'values are kept');
  for (const role of ['control', 'agent']) {
    const moved = await install(role, '--root', one, '--redis-url', 'redis://:p@10.0.0.7');
    t.is(moved.code, 1);
    t.regex(moved.output, new RegExp(`etc/berth/${role}.env has another REDIS_URL`, 'u'));
  }
});

test('only the agent is root, and what it started outlives it', async (t) => {
  await using directory = await temporaryDirectory();
  const { path: root } = directory;
  const roles = ['redis', 'control', 'agent'];
  for (const role of roles) t.is((await install(role, '--root', root)).code, 0);
  const [redis = '', control = '', agent = ''] = await Promise.all(
    roles.map((role) => readFile(unitIn(root, role), 'utf8')),
  );
  for (const unit of [redis, control]) {
    t.regex(unit, /^User=berth-(?:redis|control)$/mu);
    t.regex(unit, /^CapabilityBoundingSet=$/mu);
    t.regex(unit, /^ProtectSystem=strict$/mu);
  }
  t.regex(control, /^LogsDirectory=berth-control$/mu, 'where AUDIT_LOG is');
  t.notRegex(agent, /^User=/mu);
  t.regex(agent, /^KillMode=process$/mu);
  const confined =
    /^(?:Protect|Private|Restrict|SystemCall|Lock|NoNew|ReadOnly|Inaccessible)\w*=/mu;
  t.notRegex(agent, confined, 'the next agent sees the mounts of this one');
  const machines = await readFile(unitIn(root, 'machines'), 'utf8');
  t.regex(machines, /^Delegate=yes$/mu);
  const { AGENT_CGROUP = '' } = await settingsOf(root, 'agent');
  t.true(machines.includes(`cd /sys/fs/cgroup${AGENT_CGROUP} `), AGENT_CGROUP);
  t.regex(agent, /^Requires=berth-machines\.service$/mu);
  if (!existsSync('/usr/bin/systemd-analyze')) {
    t.log('systemd is not installed: its own check of the units is left out');
    return;
  }
  const units = [...roles, 'machines'].map((role) => unitIn(root, role));
  const { code, output } = await run('systemd-analyze', ['verify', '--man=no', ...units]);
  t.is(code, 0, output);
});

test('units are written anew for the roles of the host alone, and wait for its directories', async (t) => {
  await using directory = await temporaryDirectory();
  const { path: root } = directory;
  const nothing = await install('units', '--root', root);
  t.deepEqual(nothing, { code: 0, output: 'berth: wrote nothing: this host has no role\n' });
  for (const role of ['redis', 'agent']) {
    t.is((await install(role, '--root', root, '--cluster', await clusterIn(root))).code, 0);
  }
  const env = join(root, 'etc/berth/agent.env');
  const settings = { ...(await settingsOf(root, 'agent')), STORAGE_DIR: '/srv/100% of them' };
  await writeEnvFile(env, settings);
  const before = await readFile(env, 'utf8');
  await writeFile(unitIn(root, 'agent'), 'of a former version');
  const { code, output } = await install('units', '--root', root);
  t.is(code, 0, output);
  t.is(await readFile(env, 'utf8'), before, 'the configuration is left alone');
  t.regex(await readFile(unitIn(root, 'agent'), 'utf8'), /^ExecStart=/mu);
  const mounts = /^RequiresMountsFor="\/var\/lib\/berth\/agent" "\/srv\/100%% of them"$/mu;
  t.regex(await readFile(unitIn(root, 'machines'), 'utf8'), mounts);
  t.false(existsSync(unitIn(root, 'control')));
});

test('a host that has its machines in another control group keeps it', async (t) => {
  await using directory = await temporaryDirectory();
  const { path: root } = directory;
  const cluster = ['--cluster', await clusterIn(root), '--redis-url', 'redis://:p@10.0.0.1'];
  t.is((await install('agent', '--root', root, ...cluster)).code, 0);
  const { AGENT_CGROUP: _, ...former } = await settingsOf(root, 'agent');
  await rm(join(root, 'etc/berth/agent.env'));
  await writeEnvFile(join(root, 'etc/berth/agent.env'), former);
  t.is((await install('agent', '--root', root, ...cluster)).code, 0);
  t.is((await settingsOf(root, 'agent'))['AGENT_CGROUP'], undefined);
});

test('a role without its cluster or a directory is refused with what to do', async (t) => {
  await using directory = await temporaryDirectory();
  const root = ['--root', directory.path];
  const agent = await install('agent', ...root, '--redis-url', 'redis://:p@10.0.0.1');
  t.is(agent.code, 1);
  t.regex(agent.output, /the cluster is not known: give --cluster/u);
  const control = await install('control', ...root);
  t.is(control.code, 1);
  t.regex(control.output, /Redis is not installed here: give --redis-url/u);
  t.is((await install('router', ...root)).code, 2);
});
