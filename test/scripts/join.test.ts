import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { chown, mkdir, readFile, stat, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import { readEnvFile } from '../../scripts/env-file.ts';
import { newJoinToken, openJoinBundle, proofOf } from '../../shared/host-invitation.ts';
import { randomSecret } from '../../shared/secrets.ts';
import { Stack } from '../helpers/stack.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';

const test = anyTest as TestFn<{ stack: Stack; audit: string }>;
const checkout = join(import.meta.dirname, '../..');
const OTHER_UID = 54_321;
const SHARED = ['CLUSTER_ID', 'CLUSTER_SECRET', 'ENCRYPTION_KEY', 'REGION', 'REDIS_URL'] as const;

interface Outcome {
  readonly code: number;
  readonly output: string;
}

/** Runs a script of the checkout. */
const run = (
  script: string,
  args: readonly string[],
  settings: Readonly<Record<string, string | undefined>> = {},
): Promise<Outcome> =>
  new Promise((resolve) => {
    const NODE_COMPILE_CACHE = join(checkout, '.local/compile-cache');
    const env = { PATH: process.env['PATH'], NODE_COMPILE_CACHE, ...settings };
    execFile(
      process.execPath,
      [join(checkout, script), ...args],
      { env },
      (error, stdout, stderr) =>
        resolve({ code: Number(error?.code ?? 0), output: stdout + stderr }),
    );
  });

async function invite({ environment }: Stack, audit: string): Promise<{ token: string }> {
  const settings = { ...environment, AUDIT_LOG: audit };
  const { code, output } = await run('scripts/admin.ts', ['host', 'invite', '--json'], settings);
  if (code !== 0) throw new Error(output);
  return JSON.parse(output) as { token: string };
}

const joinFrom = ({ baseUrl }: Stack, token: string, root: string): Promise<Outcome> =>
  run('scripts/join.ts', [baseUrl, token, '--address', '10.0.0.2', '--root', root]);

test.before(async (t) => {
  const stack = await Stack.start();
  t.context = { stack, audit: join(stack.directory, 'audit.log') };
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

test('a host joins with a token, once, and gets the settings of the cluster but no signing keys', async (t) => {
  const { stack, audit } = t.context;
  await using first = await temporaryDirectory();
  await using second = await temporaryDirectory();
  const { token } = await invite(stack, audit);
  const joined = await joinFrom(stack, token, first.path);
  t.is(joined.code, 0, joined.output);
  const file = join(first.path, 'etc/berth/agent.env');
  t.is((await stat(file)).mode & 0o777, 0o600);
  const agent = await readEnvFile(file);
  for (const name of SHARED) t.is(agent[name], stack.environment[name], name);
  t.is(agent['AGENT_PUBLIC_URL'], 'http://10.0.0.2:8710');
  t.is(agent['SIGNING_KEYS'], undefined);
  t.false(existsSync(join(first.path, 'etc/berth/joining')));

  const again = await joinFrom(stack, token, second.path);
  t.is(again.code, 1);
  t.regex(again.output, /another host has used this token/u);
  t.false(existsSync(join(second.path, 'etc/berth/agent.env')));

  const written = await readFile(audit, 'utf8');
  t.regex(written, /"host\.invited"/u);
  t.false(written.includes(token));
  const redis = await stack.redisClient();
  const dump = await Promise.all(
    (await redis.keys('*invitation*')).map((key) => redis.hgetall(key)),
  );
  t.false(JSON.stringify(dump).includes(stack.environment['CLUSTER_SECRET'] ?? ''));
});

test('a host whose answer was lost asks again and gets it', async (t) => {
  const { stack, audit } = t.context;
  await using host = await temporaryDirectory();
  const { token } = await invite(stack, audit);
  const [proof, nonce] = [proofOf(token), randomSecret()];
  const answer = await fetch(`${stack.baseUrl}/api/hosts/join`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ proof, nonce, name: 'node-2' }),
  });
  t.is(answer.status, 200);
  const { data } = (await answer.json()) as { data: { sealed: string } };
  t.throws(() => openJoinBundle(newJoinToken(), data.sealed), {
    message: /not made for this token/u,
  });
  // Leftovers of a first attempt.
  await mkdir(join(host.path, 'etc/berth'), { recursive: true });
  await writeFile(join(host.path, 'etc/berth/joining'), `${proof}\n${nonce}\n`);
  const joined = await joinFrom(stack, token, host.path);
  t.is(joined.code, 0, joined.output);
});

test('control can go on writing the audit log that an invitation has begun', async (t) => {
  const { stack } = t.context;
  await using logs = await temporaryDirectory();
  await chown(logs.path, OTHER_UID, OTHER_UID);
  const audit = join(logs.path, 'audit.log');
  await invite(stack, audit);
  await invite(stack, audit);
  const { uid, mode, size } = await stat(audit);
  t.deepEqual([uid, mode & 0o777], [OTHER_UID, 0o600]);
  t.true(size > 0);
  const aside = join(logs.path, 'aside');
  await writeFile(aside, '');
  await symlink(aside, join(logs.path, 'link.log'));
  await t.throwsAsync(invite(stack, join(logs.path, 'link.log')), { message: /ELOOP/u });
  t.is(await readFile(aside, 'utf8'), '');
  const missing = invite(stack, join(logs.path, 'missing/audit.log'));
  await t.throwsAsync(missing, { message: /is missing: start control on this host/u });
});

const refusals: Readonly<Record<string, { args: readonly string[]; says: RegExp }>> = {
  'an unknown token': {
    args: ['URL', newJoinToken(), '--address', '10.0.0.2', '--root', 'ROOT'],
    says: /did not let this host join: the token is unknown or has expired/u,
  },
  'no token': { args: ['URL', 'join-short', '--address', '10.0.0.2'], says: /no join token/u },
  'no address': { args: ['URL', newJoinToken(), '--root', 'ROOT'], says: /give --address/u },
  'no URL': { args: ['berth', newJoinToken()], says: /is not the URL of a control node/u },
  'a key without a certificate': {
    args: ['URL', newJoinToken(), '--address', '10.0.0.2', '--key', '/key', '--root', 'ROOT'],
    says: /give --cert and --key/u,
  },
};
for (const [what, { args, says }] of Object.entries(refusals)) {
  test(`refused with a sentence that says what to do: ${what}`, async (t) => {
    await using host = await temporaryDirectory();
    const { baseUrl } = t.context.stack;
    const given = args.map((each) => each.replace('URL', baseUrl).replace('ROOT', host.path));
    const { code, output } = await run('scripts/join.ts', given);
    t.is(code, 1);
    t.regex(output, says);
    t.false(existsSync(join(host.path, 'etc/berth/agent.env')));
  });
}

test('a token lives for a minute to a day', async (t) => {
  const { environment } = t.context.stack;
  for (const minutes of ['0', '1441', 'soon']) {
    const args = ['host', 'invite', '--minutes', minutes];
    const { code, output } = await run('scripts/admin.ts', args, environment);
    t.not(code, 0);
    t.regex(output, /1 to 1440 minutes/u);
  }
});
