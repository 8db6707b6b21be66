/* `scripts/up --check`: what it says of this host, whatever that can do. */
import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';
import { holdLock } from '../../agent/system/journal/journal.ts';
import { planRouter } from '../../agent/network/slots/router-plan.ts';
import { detectCgroups, removeCgroups, trackingGroup } from '../../agent/system/cgroup.ts';
import { paths as agentPaths } from '../../agent/system/paths.ts';
import { judgeConntrack } from '../../scripts/doctor/confinement.ts';
import { checkLeftovers } from '../../scripts/doctor/leftovers.ts';
import { readEnvFile, required } from '../../scripts/env-file.ts';
import { paths } from '../../scripts/local-paths.ts';
import { readStackState } from '../../scripts/stack-state.ts';
import { newHostId } from '../../shared/ids.ts';

interface Finding {
  readonly check: string;
  readonly level: 'ok' | 'warning' | 'failed';
  readonly message: string;
  readonly next?: string;
}

async function check(): Promise<{ findings: Finding[]; code: number }> {
  const { code, stdout } = await promisify(execFile)(join(paths.root, 'scripts/up'), [
    '--check',
    '--json',
  ])
    .then(({ stdout: text }) => ({ code: 0, stdout: text }))
    .catch((error: { code: number; stdout: string }) => error);
  return { findings: (JSON.parse(stdout) as { findings: Finding[] }).findings, code };
}

test('every check reports, with the next step for what is not well, and a port that is taken fails', async (t) => {
  const config = await readEnvFile(paths.config);
  const port = required(config, 'AGENT_ADMIN_PORT');
  const server = createServer();
  // Somebody else may have it, which is as good.
  await new Promise<void>((resolve) => {
    server.once('error', () => resolve());
    server.listen({ port: Number(port), host: '127.0.0.1' }, resolve);
  });
  t.teardown(() => server.close());
  const { findings, code } = await check();
  const expected = [
    'versions',
    'kernel',
    'cgroups',
    'namespaces',
    'seccomp',
    'nft',
    'conntrack',
    'kvm',
    'ports',
    'space',
    'clock',
    'redis',
    'addresses',
    'leftovers',
  ];
  t.deepEqual(
    [...new Set(findings.map((finding) => finding.check))].filter((name) =>
      expected.includes(name),
    ),
    expected,
  );
  for (const { level, message, next } of findings) {
    t.truthy(message);
    t.is(next === undefined, level === 'ok', message);
  }
  // A guest boots, or the report says that it does not: never that all is well because there is a
  // device.
  t.regex(
    findings.find((finding) => finding.check === 'kvm')?.message ?? '',
    /a guest boots under KVM|does not boot under it|no \/dev\/kvm|are containers/u,
  );
  t.is(code, findings.some(({ level }) => level === 'failed') ? 1 : 0);
  if ((await readStackState()).isRunning) return;
  const ports = findings.filter((finding) => finding.check === 'ports');
  t.true(ports.some(({ level, message }) => level === 'failed' && message.includes(port)));
});

test('a table of connections that few sandboxes can fill is warned of, with the size that it needs', (t) => {
  t.is(judgeConntrack(262_144, 120).level, 'ok');
  t.is(judgeConntrack(65_536, 10).level, 'ok', 'what has ended is soon forgotten');
  const { level, next = '' } = judgeConntrack(65_536, 120);
  t.is(level, 'warning');
  const wanted = Number(/nf_conntrack_max=(\d+)/u.exec(next)?.[1]);
  t.is(judgeConntrack(wanted, 120).level, 'ok');
});

test('what an agent that is gone has left is named: control groups, processes and networks', async (t) => {
  const AGENT_DATA_DIR = await mkdtemp(join(tmpdir(), 'berth-test-'));
  t.teardown(() => rm(AGENT_DATA_DIR, { recursive: true, force: true }));
  const AGENT_CGROUP = `/berth-test-${randomBytes(4).toString('hex')}`;
  const hostId = newHostId();
  const messages = async (): Promise<string[]> => {
    const findings = await checkLeftovers({ AGENT_DATA_DIR, AGENT_CGROUP });
    return findings.map(({ message }) => message);
  };
  t.deepEqual(await messages(), ['none']);
  await writeFile(agentPaths.hostId(AGENT_DATA_DIR), `${hostId}\n`);
  t.deepEqual(await messages(), ['none']);

  const cgroups = await detectCgroups();
  const parent = `${AGENT_CGROUP}/${hostId}`;
  const group = trackingGroup(cgroups, `${parent}/sandboxes`);
  await mkdir(group, { recursive: true });
  t.teardown(() => removeCgroups(cgroups, parent));
  t.deepEqual(await messages(), [`the control group ${parent}`]);

  const machine = spawn('sleep', ['600']);
  const ended = once(machine, 'exit');
  t.teardown(() => machine.kill('SIGKILL') && ended);
  await writeFile(join(group, 'cgroup.procs'), String(machine.pid));
  const { namespace } = planRouter(hostId);
  await promisify(execFile)('ip', ['netns', 'add', namespace]);
  t.teardown(() => promisify(execFile)('ip', ['netns', 'delete', namespace]));
  t.deepEqual(await messages(), [
    `processes: 1, such as ${machine.pid} (sleep)`,
    `network namespaces: 1, such as ${namespace}`,
  ]);

  // With an agent they are in use.
  const release = await holdLock(agentPaths.lock(AGENT_DATA_DIR));
  t.deepEqual(await messages(), ['the agent runs']);
  await release();
  t.is((await messages()).length, 2);
});
