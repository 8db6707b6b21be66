/* Measurements for operators and owners, and the files of docs/monitoring. */
import { execFile, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text as readAll } from 'node:stream/consumers';
import { promisify } from 'node:util';
import type { SandboxUsage } from '../../shared/schemas/sandbox-usage.ts';
import { MiB } from '../../shared/units.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { isFull } from '../helpers/full.ts';
import {
  bring,
  containerSettings,
  createSandbox,
  outputOf,
  sandboxPath,
  sandboxSettings,
} from '../helpers/sandboxes.ts';
import type { Stack } from '../helpers/stack.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

const test = stackTest(isFull ? sandboxSettings() : containerSettings()); // Machines take longer.
const files = join(import.meta.dirname, '../../docs/monitoring');
const SUFFIXES = /_(?:count|sum|bucket)$/u;

async function metricsOf(stack: Stack): Promise<{ control: string; agent: string }> {
  const { CONTROL_INTERNAL_PORT, AGENT_ADMIN_PORT } = stack.environment;
  const [control = '', agent = ''] = await Promise.all(
    [CONTROL_INTERNAL_PORT, AGENT_ADMIN_PORT].map(async (port) =>
      (await fetch(`http://127.0.0.1:${port}/metrics`)).text(),
    ),
  );
  return { control, agent };
}

/** The value of the only line of this metric whose labels have this text. */
function valueOf(text: string, name: string, label = ''): number | undefined {
  const lines = text.split('\n').filter((line) => line.startsWith(`${name}{`));
  const found = lines.filter((line) => line.includes(label));
  return found.length === 1 ? Number(found[0]?.split('} ')[1]) : undefined;
}

test('the owner of a sandbox is told what it uses, and of one at rest what it stores', async (t) => {
  const { api, stack } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const measure = (): Promise<SandboxUsage> =>
    api.data<SandboxUsage>('GET', `${sandboxPath(id)}/metrics`);
  const before = await measure();
  // A processor second, memory that stays in use, and bytes that stay on the disk.
  const work =
    'timeout 1 sh -c "while :; do :; done"; head -c 20000000 /dev/urandom >/dev/shm/x; head -c 8000000 /dev/urandom >~/y; sync';
  await outputOf(api, id, work);
  const after = await measure();
  t.true((after.cpu_seconds ?? 0) > (before.cpu_seconds ?? Infinity), 'processor time grows');
  t.true((after.memory_bytes ?? 0) > (before.memory_bytes ?? Infinity) + 10 * MiB);
  t.true(after.stored_bytes > before.stored_bytes + 4 * MiB);
  t.is(typeof after.network_received_bytes, 'number');
  t.is(typeof after.network_sent_bytes, 'number');

  const { agent } = await metricsOf(stack);
  const label = `sandbox_id="${id}"`;
  t.true(
    (valueOf(agent, 'berth_sandbox_cpu_seconds_total', label) ?? 0) >= (after.cpu_seconds ?? 1),
  );
  t.true((valueOf(agent, 'berth_sandbox_memory_bytes', label) ?? 0) > 10 * MiB);

  const stranger = await stack.newClient();
  t.is((await stranger.call('GET', `${sandboxPath(id)}/metrics`)).status, 404);
  await bring(api, id, 'stop', 'stopped');
  const rested = await measure();
  t.is(rested.cpu_seconds, undefined);
  t.is(rested.memory_bytes, undefined);
  t.true(rested.stored_bytes > 4 * MiB);
  t.is(valueOf((await metricsOf(stack)).agent, 'berth_sandbox_memory_bytes', label), undefined);
});

test('control and agent tell what they are, and how they are connected', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'true');
  const { control, agent } = await metricsOf(stack);
  for (const text of [control, agent]) {
    t.is(valueOf(text, 'berth_build_info', `node="${process.version}"`), 1);
    t.is(valueOf(text, 'berth_redis_up'), 1);
    t.true((valueOf(text, 'berth_redis_answer_seconds') ?? -1) > 0);
  }
  t.is(valueOf(control, 'berth_linked_hosts', 'state="ready"'), 1);
  t.is(valueOf(agent, 'berth_control_links'), 1);
  const figures = ['berth_queue_jobs', 'berth_queue_oldest_job_seconds'];
  // A job is in its queue a little longer than its caller waits.
  await waitFor('the queues to be empty', async () => {
    const { agent: now } = await metricsOf(stack);
    return ['exec', 'sandbox', 'host'].every((queue) =>
      figures.every((figure) => valueOf(now, figure, `queue="${queue}"`) === 0),
    );
  });
});

const namesIn = (text: string): Set<string> => new Set(text.match(/\bberth_[a-z_]+/gu));

test('alerts, dashboard and the table name metrics that there are, and the table names all', async (t) => {
  const { control, agent } = await metricsOf(t.context.stack);
  const own = [...`${control}\n${agent}`.matchAll(/^# TYPE (berth_\w+) (\w+)$/gmu)];
  const known = new Set(own.map(([, name = '']) => name));
  // Only on a node that sees the files of Redis.
  const elsewhere = new Set(['berth_directory_free_bytes', 'berth_directory_reserve_bytes']);
  for (const file of ['alerts.yml', 'dashboard.json', '../operations.md']) {
    const named = namesIn(await readFile(join(files, file), 'utf8'));
    const strange = [...named].filter((name) => {
      const isKnown = known.has(name) || known.has(name.replace(SUFFIXES, ''));
      return !isKnown && !elsewhere.has(name);
    });
    t.deepEqual(strange, [], file);
  }
  const documented = namesIn(await readFile(join(files, '../operations.md'), 'utf8'));
  t.deepEqual(
    [...known].filter((name) => !documented.has(name)),
    [],
  );
  for (const [, name = '', kind] of own) {
    t.is(kind === 'counter', name.endsWith('_total'), `${name} is named as a ${kind}`);
    t.notRegex(name, /_(?:ms|mib|kib|minutes)(?:_|$)/u, `${name} is in a base unit`);
  }
});

// Debian's prometheus is installed for runs at full length only.
const withPromtool = existsSync('/usr/bin/promtool') ? test : test.skip;
withPromtool('promtool accepts the alert rules, and their tests hold', async (t) => {
  const promtool = promisify(execFile);
  const options = { cwd: files };
  await t.notThrowsAsync(promtool('promtool', ['check', 'rules', 'alerts.yml'], options));
  await t.notThrowsAsync(promtool('promtool', ['test', 'rules', 'alerts.test.yml'], options));
});

withPromtool(
  'promtool finds no metric of control or agent that is named against conventions',
  async (t) => {
    const { control, agent } = await metricsOf(t.context.stack);
    for (const text of [control, agent]) {
      const child = spawn('promtool', ['check', 'metrics'], { stdio: ['pipe', 'ignore', 'pipe'] });
      child.stdin.end(text);
      const said = await readAll(child.stderr);
      // Names that prom-client gives the figures of the process are not ours.
      const own = said.split('\n').filter((line) => line.startsWith('berth_'));
      t.deepEqual(own, []);
      t.regex(text, /^berth_build_info\{/mu);
    }
  },
);
