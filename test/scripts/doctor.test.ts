/* `scripts/up --check`: what it says of this host, whatever that can do. */
import { execFile } from 'node:child_process';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';
import { readEnvFile, required } from '../../scripts/env-file.ts';
import { paths } from '../../scripts/local-paths.ts';
import { readStackState } from '../../scripts/stack-state.ts';

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
    'kvm',
    'ports',
    'space',
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
  // A guest boots, or the report says that it does not: never that all is well because there is a device.
  t.regex(
    findings.find((finding) => finding.check === 'kvm')?.message ?? '',
    /a guest boots under KVM|does not boot under it|no \/dev\/kvm|are containers/u,
  );
  t.is(code, findings.some(({ level }) => level === 'failed') ? 1 : 0);
  if ((await readStackState()).isRunning) return;
  const ports = findings.filter((finding) => finding.check === 'ports');
  t.true(ports.some(({ level, message }) => level === 'failed' && message.includes(port)));
});
