import test from 'ava';
import Type, { type TSchema } from 'typebox';
import { readAgentConfig } from '../../../agent/config.ts';
import { readControlConfig } from '../../../control/config.ts';
import { ClusterSettings } from '../../../shared/settings/cluster-settings.ts';
import { ControlSettings } from '../../../shared/settings/control-settings.ts';
import { flag, integer, list, text } from '../../../shared/settings/kinds.ts';
import { ConfigurationError, readSettings } from '../../../shared/settings/read-settings.ts';
import * as fc from '../../helpers/fast-check.ts';
import { unicodeText } from '../../helpers/unicode-text.ts';

const description = 'for tests';

const read = <T extends TSchema>(X: T, value: string | undefined) =>
  readSettings(Type.Object({ X }), { X: value });

/** The problem that is reported, or undefined. */
function problemOf(setting: TSchema, value: string | undefined): string | undefined {
  try {
    read(setting, value);
    return undefined;
  } catch (error) {
    return (error as Error).message;
  }
}

test('an integer is accepted between its bounds and refused outside of them', (t) => {
  fc.assert(
    fc.property(fc.integer(), fc.integer(), fc.integer(), (value, a, b) => {
      const [minimum, maximum] = [Math.min(a, b), Math.max(a, b)];
      const setting = integer({ description, minimum, maximum });
      const isInside = value >= minimum && value <= maximum;
      if (isInside) t.is(read(setting, String(value)).X, value);
      else t.regex(problemOf(setting, String(value)) ?? '', /X must be an integer/u);
    }),
  );
});

const kinds: Readonly<Record<string, TSchema>> = {
  text: text({ description }),
  region: text({ description, pattern: '^[a-z]+-[a-z]+$' }),
  integer: integer({ description, minimum: 1, maximum: 10 }),
  flag: flag({ description }),
  choice: Type.Enum(['on', 'off'], { description, default: 'on' }),
  list: list({ description, isFit: (item) => item === 'a', expected: 'letters' }),
  key: ClusterSettings.properties.ENCRYPTION_KEY,
  secrets: ControlSettings.properties.SIGNING_KEYS,
  aliases: ControlSettings.properties.IMAGE_ALIASES,
};

test('whatever the environment holds, the only error is one that names the setting', (t) => {
  fc.assert(
    fc.property(fc.option(unicodeText(), { nil: undefined }), (value) => {
      for (const setting of Object.values(kinds)) {
        try {
          read(setting, value);
        } catch (error) {
          t.true(error instanceof ConfigurationError);
          t.regex((error as Error).message, /^configuration: X /u);
        }
      }
    }),
  );
});

const refused = test.macro({
  exec(t, kind: string, value: string | undefined, message: string) {
    t.is(problemOf(kinds[kind] ?? Type.Never(), value), `configuration: X ${message}`);
  },
  title: (_given, kind: string, value?: string) => `${kind} refuses ${JSON.stringify(value)}`,
});

test(refused, 'text', undefined, 'is not set');
test(refused, 'text', '', 'is not set');
test(refused, 'region', 'somewhere', 'does not match ^[a-z]+-[a-z]+$');
test(refused, 'integer', undefined, 'is not set');
test(refused, 'integer', '', 'is not set');
for (const value of ['ten', '1.5', 'Infinity', '11', '0']) {
  test(refused, 'integer', value, 'must be an integer from 1 to 10');
}
test(refused, 'flag', 'yes', 'must be true or false');
test(refused, 'choice', 'maybe', 'must be one of on, off');
test(refused, 'list', 'a,b', 'must be letters');
test(refused, 'key', 'AAAA', 'must be 1 to 4 secrets, each 32 bytes in base64, none twice');
test(refused, 'key', undefined, 'is not set');
for (const value of ['', 'short', `${'x'.repeat(32)},short`, 'x'.repeat(31)]) {
  test(
    refused,
    'secrets',
    value,
    'must be 1 to 4 secrets, each at least 32 characters, none twice',
  );
}
for (const value of ['a', 'a=', '=default', 'a=three', 'a=b=default', 'a=default,b', '=']) {
  test(refused, 'aliases', value, 'must be pairs <reference>=default, separated by commas');
}

test('a default stands in for a setting that is not there or empty, but an empty list is empty', (t) => {
  const many = list({ description, default: ['a', 'b'] });
  t.deepEqual(read(many, undefined), { X: ['a', 'b'] });
  t.deepEqual(read(many, ''), { X: [] });
  t.deepEqual(read(many, ',c,,d,'), { X: ['c', 'd'] });
  const number = integer({ description, minimum: 0, maximum: 9, default: 4 });
  t.deepEqual([read(number, undefined).X, read(number, '').X, read(number, '7').X], [4, 4, 7]);
  t.deepEqual(read(Type.Optional(text({ description })), undefined), {});
});

test('a control node without settings names all that it needs in one sentence', (t) => {
  const error = t.throws(() => readControlConfig({}), { instanceOf: ConfigurationError });
  t.deepEqual(error.problems.map((problem) => problem.replace(/ .*/u, '')).sort(), [
    'CLUSTER_ID',
    'CLUSTER_SECRET',
    'CONTROL_INTERNAL_PORT',
    'CONTROL_PORT',
    'ENCRYPTION_KEY',
    'PUBLIC_BASE_URL',
    'REGION',
    'SIGNING_KEYS',
  ]);
  t.false(error.message.includes('\n'));
});

const AGENT = {
  REDIS_URL: 'redis://127.0.0.1',
  CLUSTER_ID: 'test',
  CLUSTER_SECRET: 's'.repeat(32),
  ENCRYPTION_KEY: Buffer.alloc(32).toString('base64'),
  REGION: 'local-test',
  AGENT_PORT: '1',
  AGENT_ADMIN_PORT: '2',
  AGENT_PUBLIC_URL: 'http://127.0.0.1:1',
  AGENT_DATA_DIR: '/data',
  STORAGE_DIR: '/storage',
  DEFAULT_IMAGE_DIR: '/image',
};

const SENTINELS = { REDIS_SENTINELS: '10.0.0.1:26379,[::1]:1', REDIS_SENTINEL_NAME: 'berth' };
for (const [what, settings, problem] of [
  ['no Redis', {}, 'REDIS_URL is not set, nor is REDIS_SENTINELS or REDIS_CLUSTER_NODES'],
  ['two ways to find Redis', SENTINELS, 'REDIS_URL and REDIS_SENTINELS are both set: unset one'],
  [
    'a password without Sentinels',
    { REDIS_PASSWORD: 'secret' },
    'REDIS_PASSWORD is set, but REDIS_SENTINELS or REDIS_CLUSTER_NODES is not',
  ],
  [
    'Sentinels without a name',
    { REDIS_SENTINELS: 'redis:26379' },
    'REDIS_SENTINEL_NAME is not set, but REDIS_SENTINELS is',
  ],
  [
    'Sentinels besides nodes of a Redis Cluster',
    { ...SENTINELS, REDIS_CLUSTER_NODES: '10.0.0.1:6379' },
    'REDIS_SENTINELS and REDIS_CLUSTER_NODES are both set: unset one',
  ],
  ['Sentinels without ports', { REDIS_SENTINELS: 'redis' }, 'REDIS_SENTINELS must be host:port'],
] as const) {
  test(`${what}: the configuration is refused`, (t) => {
    const url =
      what === 'no Redis' || what.startsWith('Sentinels') ? {} : { REDIS_URL: AGENT.REDIS_URL };
    const { REDIS_URL: _, ...others } = AGENT;
    const error = t.throws(() => readAgentConfig({ ...others, ...url, ...settings }));
    t.true(error.message.includes(problem), error.message);
  });
}

test('Sentinels are read with their addresses and passwords', (t) => {
  const { REDIS_URL: _, ...others } = AGENT;
  const { cluster } = readAgentConfig({ ...others, ...SENTINELS, REDIS_PASSWORD: 'secret' });
  t.deepEqual(cluster.redis, {
    sentinels: [
      { host: '10.0.0.1', port: 26_379 },
      { host: '::1', port: 1 },
    ],
    name: 'berth',
    username: undefined,
    password: 'secret',
    sentinelPassword: undefined,
    tls: undefined,
  });
});

test('nodes of a Redis Cluster are read, and one replica of each confirms changes', (t) => {
  const { REDIS_URL: _, ...others } = AGENT;
  const nodes = { REDIS_CLUSTER_NODES: '10.0.0.1:6379,redis-2:6380', REDIS_PASSWORD: 'secret' };
  const { cluster } = readAgentConfig({ ...others, ...nodes });
  t.deepEqual(cluster.redis, {
    nodes: [
      { host: '10.0.0.1', port: 6379 },
      { host: 'redis-2', port: 6380 },
    ],
    ...{ username: undefined, password: 'secret', tls: undefined },
  });
  t.is(cluster.confirmingReplicas, 1);
});

test('an agent gets its defaults from the host and from its other settings', (t) => {
  const config = readAgentConfig({ ...AGENT, EXEC_SLOTS: '8', INGRESS_PORT: '3' });
  t.is(config.execSlotsPerAccount, 6);
  t.is(config.internalUrl, 'http://127.0.0.1:2');
  t.is(config.ingress?.host, '127.0.0.1');
  t.is(config.sandboxes, undefined);
});

test('an agent refuses half of what belongs together', (t) => {
  const error = t.throws(() => readAgentConfig({ ...AGENT, GUEST_DIR: '/guest' }));
  t.is(error.message, 'configuration: DEFAULT_ROOT_DISK is not set, but GUEST_DIR is');
  const networks = { SANDBOX_REACHABLE_NETWORKS: '10.1.2.3/8' };
  t.throws(() => readAgentConfig({ ...AGENT, ...networks }), {
    message: 'configuration: SANDBOX_REACHABLE_NETWORKS must be networks such as 10.1.0.0/16',
  });
});

test('the message about a wrong secret does not contain it', (t) => {
  const CLUSTER_SECRET = 'too-short-a-secret';
  const ENCRYPTION_KEY = Buffer.from('a short key').toString('base64');
  const error = t.throws(() => readControlConfig({ CLUSTER_SECRET, ENCRYPTION_KEY }));
  t.true(error.message.includes('CLUSTER_SECRET must be 1 to 4 secrets, each at least 32'));
  t.false(error.message.includes(CLUSTER_SECRET));
  t.false(error.message.includes(ENCRYPTION_KEY));
});

test('secrets are rings of up to four, none twice', (t) => {
  const secrets = ['a', 'b', 'c', 'd', 'e'].map((letter) => letter.repeat(32));
  const keys = [1, 2, 3].map((byte) => Buffer.alloc(32, byte).toString('base64'));
  const { clusterSecrets, encryptionKeys } = readAgentConfig({
    ...{ ...AGENT, CLUSTER_SECRET: secrets.slice(0, 4).join(','), ENCRYPTION_KEY: keys.join(',') },
  }).cluster;
  t.deepEqual([...clusterSecrets], secrets.slice(0, 4));
  t.deepEqual(
    encryptionKeys.map((key) => key[0]),
    [1, 2, 3],
  );
  for (const CLUSTER_SECRET of [
    secrets.join(','),
    `${secrets[0]},${secrets[0]}`,
    `${secrets[0]},short`,
  ]) {
    const { message } = t.throws(() => readAgentConfig({ ...AGENT, CLUSTER_SECRET }));
    t.regex(message, /CLUSTER_SECRET must be 1 to 4 secrets/u);
    t.notRegex(message, /aaaa|short/u);
  }
});
