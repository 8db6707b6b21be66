/*
 * `scripts/control-image` and docs/compose/compose.yaml: control and Redis out of the image, as the
 * compose file has them run. Building it takes a minute, so it is for runs at full length.
 */
import { randomUUID } from 'node:crypto';
import { copyFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { readEnvFile, writeEnvFile } from '../../scripts/env-file.ts';
import { paths } from '../../scripts/local-paths.ts';
import { TestAuthority } from '../helpers/certificates.ts';
import { ComposeService, readComposeFile, run } from '../helpers/compose-services.ts';
import { isFull } from '../helpers/full.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';
import { waitFor } from '../helpers/wait.ts';

const TIMEOUT_MS = 15 * 60_000;
const USER = 10_001;
const install = join(paths.root, 'scripts/install');

/** Writes what docs/containers.md has an operator write, with TLS for callers. */
async function configure(directory: string, authority: TestAuthority): Promise<void> {
  const etc = join(directory, 'etc/berth');
  await mkdir(join(etc, 'tls'), { recursive: true });
  await run(install, 'redis', '--root', directory);
  const { cert, key } = await authority.issue(join(etc, 'tls'), 'control');
  await writeEnvFile(join(etc, 'control.env'), {
    ...{ PUBLIC_BASE_URL: 'https://127.0.0.1:8700', CONTROL_LEAVE_MS: '0' },
    ...{ CONTROL_TLS_CERT: '/etc/berth/tls/control.pem' },
    ...{ CONTROL_TLS_KEY: '/etc/berth/tls/control.key' },
  });
  await run(install, 'control', '--root', directory);
  await run('chown', String(USER), join(etc, 'redis.conf'), cert, key);
  await copyFile(join(paths.root, 'docs/compose/compose.yaml'), join(directory, 'compose.yaml'));
}

/**
 * A network of the test's own in the place of the host's, so that ports are the documented ones.
 */
async function openNetwork(): Promise<AsyncDisposable & { readonly name: string }> {
  const name = `bt-${randomUUID().slice(0, 8)}`;
  await run('ip', 'netns', 'add', name);
  await run('ip', '-n', name, 'link', 'set', 'lo', 'up');
  return {
    name,
    [Symbol.asyncDispose]: () => run('ip', 'netns', 'del', name).then(() => undefined),
  };
}

interface Answer {
  readonly status: number;
  readonly body: string;
}

/** Requests in the network, by a client that trusts the authority alone. */
const getter =
  (network: string, ca: string) =>
  async (path: string, key = 'none'): Promise<Answer> => {
    const curl = [
      'curl',
      '--silent',
      '--show-error',
      '--cacert',
      ca,
      '--write-out',
      '%{http_code}',
    ];
    const headers = ['--header', `authorization: Bearer ${key}`];
    const url = `https://127.0.0.1:8700${path}`;
    const printed = await run('ip', 'netns', 'exec', network, ...curl, ...headers, url);
    return { status: Number(printed.slice(-3)), body: printed.slice(0, -3) };
  };

/** Unpacks the archive as an engine loads it. @returns its name for umoci */
async function load(archive: string, directory: string): Promise<string> {
  const tar = join(directory, 'image.tar');
  await run('bash', '-c', 'gzip -dc "$0" >"$1"', archive, tar);
  const image = `${join(directory, 'oci')}:loaded`;
  await run('skopeo', 'copy', '--insecure-policy', `docker-archive:${tar}`, `oci:${image}`);
  return image;
}

if (isFull) {
  test('control and Redis run out of the image as the compose file says', async (t) => {
    t.timeout(TIMEOUT_MS);
    await using stack = new AsyncDisposableStack();
    const { path } = stack.use(await temporaryDirectory());
    const archive = (await run(join(paths.root, 'scripts/control-image'), path)).trim();
    const image = await load(archive, path);
    const authority = await TestAuthority.create('callers');
    const directory = join(path, 'deployment');
    await configure(directory, authority);
    const network = stack.use(await openNetwork());
    const ca = join(path, 'ca.pem');
    await writeFile(ca, authority.certificate);
    const get = getter(network.name, ca);

    const services = Object.entries(await readComposeFile(directory)).map(([name, settings]) => {
      t.is(settings.image, 'berth-control:latest');
      const id = `berth-test-${name}-${randomUUID()}`;
      return [name, new ComposeService(id, settings, join(path, name))] as const;
    });
    const { redis, control } = Object.fromEntries(services);
    if (redis === undefined || control === undefined) return t.fail('services are missing');
    for (const service of [redis, control]) {
      await service.prepare(image, join(path, 'volumes'), network.name);
      stack.defer(() => service.remove());
      service.daemon.start();
      const log = `${service.bundle}/log`;
      await waitFor(`health, see ${log}`, () => service.isHealthy(), 120_000);
    }

    // A caller's way: an account by scripts/admin inside, then the API over TLS.
    t.deepEqual(await get('/healthz'), { status: 200, body: 'ok\n' });
    const admin = async (...args: string[]): Promise<string> =>
      control.exec('node', 'scripts/admin.ts', '--json', ...args);
    await admin('account', 'create', 'acme');
    const created = JSON.parse(await admin('key', 'create', 'acme')) as { token: string };
    const disks = await get('/api/disks', created.token);
    t.is(disks.status, 200, disks.body);
    t.is((await get('/api/disks')).status, 401);
    for (const page of ['/docs', '/docs/guides/containers', '/console', '/openapi.json']) {
      t.is((await get(page)).status, 200, page);
    }
    t.regex(await admin('host', 'invite'), /token/u);

    // Its user has no rights, and nothing but the volumes can be written.
    const status = await readFile(`/proc/${await pidOf(control)}/status`, 'utf8');
    t.regex(status, new RegExp(`^Uid:(\\s+${USER}){4}$`, 'mu'));
    t.regex(status, /^CapBnd:\s+0+$/mu);
    t.regex(status, /^NoNewPrivs:\s+1$/mu);
    const write = (file: string): Promise<string> =>
      control.exec('node', '-e', `fs.writeFileSync('${file}', '')`);
    for (const file of ['/tmp/file', '/usr/lib/berth/file', '/var/lib/berth-redis/file']) {
      await t.throwsAsync(write(file), { message: /EROFS/u });
    }
    await t.notThrowsAsync(write('/var/log/berth-control/other'));
    await t.throwsAsync(control.exec('sh', '-c', 'true'), { message: /not found/u });

    // Redis away shows in the health check, and what it had is there when it is back.
    t.is(await redis.stop(), 0);
    t.false(await control.isHealthy());
    redis.daemon.start();
    await waitFor('control with Redis', () => control.isHealthy());
    t.is((await get('/api/disks', created.token)).status, 200);
    t.is(await control.stop(), 0, 'SIGTERM ends it in order');
    const settings = await readEnvFile(join(directory, 'etc/berth/control.env'));
    t.is(settings['AUDIT_LOG'], '/var/log/berth-control/audit.log');
  });
} else {
  test('control can start out of the files that its image has', async (t) => {
    await using directory = await temporaryDirectory();
    const { path } = directory;
    const node = join(paths.root, 'node_modules/.bin/node');
    const listed = await run(node, join(paths.root, 'scripts/control-files.ts'));
    t.notRegex(listed, /^(?:agent\/(?!system\/)|node_modules\/(?:sqlite3|@aws-sdk)\b)/mu);
    await writeFile(join(path, 'files'), listed);
    const copy = 'tar -C "$1" --files-from="$2/files" -cf - | tar -C "$2" -xf -';
    await run('bash', '-euo', 'pipefail', '-c', copy, 'copy', paths.root, path);
    await run(install, 'redis', '--root', path);
    await run(install, 'control', '--root', path);
    const config = ['--config', join(path, 'etc/berth/control.env')];
    const said = await run(node, join(path, 'control/main.ts'), '--check', ...config);
    t.is(said, 'control: the configuration is valid\n');
    t.regex(await run(node, join(path, 'scripts/admin.ts'), '--help'), /secrets reseal/u);
  });
}

/** The first process of the service's container, as the host sees it. */
async function pidOf({ id }: ComposeService): Promise<number> {
  return (JSON.parse(await run('runc', 'state', id)) as { pid: number }).pid;
}
