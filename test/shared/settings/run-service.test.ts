import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'ava';
import {
  variablesFor,
  suspectInEnvironment,
  unknownInEnvironment,
  unknownInFile,
} from '../../../shared/settings/known-settings.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

const root = join(import.meta.dirname, '../../..');

const CONTROL = {
  REDIS_URL: 'redis://127.0.0.1:1',
  CLUSTER_ID: 'test',
  CLUSTER_SECRET: 's'.repeat(32),
  ENCRYPTION_KEY: Buffer.alloc(32).toString('base64'),
  REGION: 'local-test',
  CONTROL_PORT: '1',
  CONTROL_INTERNAL_PORT: '2',
  PUBLIC_BASE_URL: 'http://127.0.0.1:1',
  SIGNING_KEYS: 'k'.repeat(32),
};

/** Runs `control/main.ts --check` on a configuration file. */
async function check(
  settings: Record<string, string>,
  environment: Record<string, string> = {},
): Promise<{ code: number; stdout: string; stderr: string }> {
  const directory = await mkdtemp(join(tmpdir(), 'berth-config-'));
  const file = join(directory, 'config.env');
  const lines = Object.entries(settings).map(([name, value]) => `${name}=${value}\n`);
  await writeFile(file, lines.join(''));
  // Half of the time would be compiling.
  const NODE_COMPILE_CACHE = join(root, '.local/compile-cache');
  const env = { PATH: process.env['PATH'], NODE_COMPILE_CACHE, ...environment };
  const command = [join(root, 'control/main.ts'), '--check', '--config', file];
  try {
    return await new Promise((resolve) => {
      execFile(process.execPath, command, { env }, (error, stdout, stderr) => {
        resolve({ code: Number(error?.code ?? 0), stdout, stderr });
      });
    });
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

test('a valid configuration file is checked without being run', async (t) => {
  const { code, stdout, stderr } = await check(CONTROL);
  t.deepEqual({ code, stderr }, { code: 0, stderr: '' });
  t.is(stdout, 'control: the configuration is valid\n');
});

test('a check says on one line each what is wrong', async (t) => {
  const { code, stderr } = await check({ ...CONTROL, REGION: 'x', CONTROL_PORT: '0' });
  t.is(code, 1);
  t.deepEqual(stderr.split('\n'), [
    'control: REGION does not match ^[a-z0-9]+-[a-z0-9]+(-[a-z0-9]+)*$',
    'control: CONTROL_PORT must be an integer from 1 to 65535',
    '',
  ]);
});

test('unknown settings are refused in the file, and in the environment if their names are ours', async (t) => {
  const [file, environment] = await Promise.all([
    check({ ...CONTROL, CONTROL_HOSTS: '127.0.0.1' }),
    check(CONTROL, { BERTH_PORT: '1', CONTROL_PROT: '1', FOREIGN: '1' }),
  ]);
  t.is(file.code, 1);
  t.regex(file.stderr, /CONTROL_HOSTS is no setting: did you mean CONTROL_HOST\?/u);
  t.is(environment.code, 1);
  t.regex(environment.stderr, /warning: CONTROL_PROT is no setting: did you mean CONTROL_PORT\?/u);
  t.regex(environment.stderr, /BERTH_PORT is no setting/u);
  t.notRegex(environment.stderr, /FOREIGN/u);
});

test('a file may hold settings of every part, and an environment variables of other programs', (t) => {
  t.deepEqual(
    unknownInFile(['CONTROL_PORT', 'AGENT_PORT', 'REDIS_PORT', 'NODE_OPTIONS', 'TZ']),
    [],
  );
  t.is(unknownInFile(['HOME', 'REDIS_PORTS']).length, 2);
  const foreign = ['HOME', 'REDIS_SERVICE_HOST', 'AGENT_NAME', 'BERTH_TEST_FULL'];
  t.deepEqual(unknownInEnvironment(foreign), []);
  // The packages of OpenTelemetry would read it behind our back.
  t.is(unknownInEnvironment(['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT']).length, 1);
  t.deepEqual(suspectInEnvironment(foreign), []);
});

test('variables of the command line are none of a service, and no settings either', (t) => {
  const names = ['BERTH_URL', 'BERTH_API_KEY', 'BERTH_PROFILE'];
  t.deepEqual(unknownInEnvironment(names), []);
  t.is(unknownInEnvironment(['BERTH_URLS', 'BERTH_PROFILES']).length, 2);
  t.is(unknownInFile(names).length, 3);
});

/**
 * Runs a service that prints its configuration, the environment that it has left, and the files
 * that it and a program of its own have open.
 */
async function runService(file: string, environment: Record<string, string>): Promise<string> {
  const module = join(root, 'shared/settings/start-service.ts');
  const script = `
    import { spawnSync } from 'node:child_process';
    import { runService } from '${module}';
    const filesOf = (id) => spawnSync('ls', ['-l', '/proc/' + id + '/fd']).stdout.toString();
    const read = ({ CLUSTER_SECRET, REGION, TZ }) => ({ CLUSTER_SECRET, REGION, TZ });
    const start = async (config) => {
      const open = filesOf(process.pid) + filesOf('self');
      console.log(JSON.stringify({ config, left: process.env, open }));
    };
    runService({ name: 'agent', read, start });`;
  const command = ['--input-type=module', '-e', script, '--', '--config', file];
  return new Promise((resolve) => {
    const options = { env: { PATH: process.env['PATH'], ...environment } };
    execFile(process.execPath, command, options, (_error, stdout, stderr) => {
      resolve(stdout + stderr);
    });
  });
}

test('settings are taken out of the environment, and a file adds none to it', async (t) => {
  await using directory = await temporaryDirectory();
  const file = join(directory.path, 'agent.env');
  await writeFile(file, 'CLUSTER_SECRET=from-file\nTZ=UTC\nREDIS_PASSWORD=secret\n');
  const printed = await runService(file, {
    ...{ REGION: 'a-region', ENCRYPTION_KEY: 'secret', SIGNING_KEYS: 'secret' },
    ...{ UV_THREADPOOL_SIZE: '8', FOREIGN: 'kept' },
  });
  t.regex(printed, /agent: warning: SIGNING_KEYS is not for agents: remove it from this host/u);
  const { config, left, open } = JSON.parse(/^\{.*\}$/mu.exec(printed)?.[0] ?? '') as {
    config: Record<string, string>;
    left: Record<string, string>;
    open: string;
  };
  t.regex(open, /socket:|pipe:/u);
  t.false(open.includes(file), 'neither has the settings file open');
  t.deepEqual(config, { CLUSTER_SECRET: 'from-file', REGION: 'a-region', TZ: 'UTC' });
  const { PATH: _, ...others } = left;
  t.deepEqual(others, { UV_THREADPOOL_SIZE: '8', FOREIGN: 'kept', TZ: 'UTC' });
});

test('each part is started with its own settings, and other programs with none', (t) => {
  const variables = {
    ...{ PATH: '/bin', FAILPOINTS: 'file', REDIS_URL: 'secret', REDIS_PORT: '1' },
    ...{ CLUSTER_SECRET: 'secret', SIGNING_KEYS: 'secret', CONTROL_PORT: '2', AGENT_PORT: '3' },
  };
  const namesFor = (part: 'control' | 'agent' | undefined): string[] =>
    Object.keys(variablesFor(part, variables)).slice(2);
  t.deepEqual(namesFor(undefined), []);
  t.deepEqual(namesFor('agent'), ['REDIS_URL', 'CLUSTER_SECRET', 'AGENT_PORT']);
  t.deepEqual(namesFor('control'), [
    ...['REDIS_URL', 'CLUSTER_SECRET', 'SIGNING_KEYS', 'CONTROL_PORT'],
  ]);
});

test('a configuration file that is not there is an error', async (t) => {
  const command = [join(root, 'agent/main.ts'), '--check', '--config', '/nonexistent/agent.env'];
  const stderr = await new Promise<string>((resolve) => {
    execFile(process.execPath, command, (_error, _stdout, text) => resolve(text));
  });
  t.regex(stderr, /agent: the configuration file cannot be read: ENOENT/u);
});
