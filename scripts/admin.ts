import { readFile, writeFile } from 'node:fs/promises';
import { parseArgs } from 'node:util';
import Type from 'typebox';
import { ConfigReader } from '../shared/config.ts';
import type { ApiKeyRecord } from '../shared/directory/api-keys.ts';
import { type Directory, openDirectory } from '../shared/directory/directory.ts';
import { connectRedis } from '../shared/directory/redis.ts';
import { AppError, toError } from '../shared/errors.ts';
import { accountIdPattern, regionPattern } from '../shared/ids.ts';
import { compile } from '../shared/validate.ts';
import { rebuildDisks } from './rebuild-disks.ts';
import { parseJson } from '../shared/json.ts';

const USAGE = `usage: scripts/admin <command> [--json]

  account create <name>                     make an account
  account list
  account allow-region <account> <region>   let it create disks in a preview region
  account deny-region <account> <region>
  key create <account> [--name <name>]      make an API key; printed once
  key list <account>
  key delete <account> <key id>
  backup <file>                             accounts and API keys (hashes only)
  restore <file>
  rebuild                                   list the disks on the storage in Redis again
`;

const Backup = Type.Object({
  version: Type.Literal(1),
  accounts: Type.Array(
    Type.Object({
      id: Type.String({ pattern: accountIdPattern }),
      name: Type.String({ minLength: 1 }),
      createdAt: Type.String({ format: 'date-time' }),
      previewRegions: Type.Array(Type.String()),
    }),
  ),
  keys: Type.Array(
    Type.Object({
      id: Type.String({ pattern: '^[0-9a-f]{64}$' }),
      name: Type.String(),
      description: Type.Optional(Type.String()),
      tokenSuffix: Type.String(),
      createdAt: Type.String({ format: 'date-time' }),
      lastUsedAt: Type.Optional(Type.String()),
      accountId: Type.String({ pattern: accountIdPattern }),
      organization: Type.String(),
    }),
  ),
});

class UsageError extends Error {}

interface Context {
  readonly directory: Directory;
  readonly storageDir: string;
  readonly keyName: string;
}

async function findAccount(directory: Directory, idOrName: string | undefined) {
  const accounts = await directory.accounts.list();
  const account = accounts.find(({ id, name }) => id === idOrName || name === idOrName);
  if (account === undefined) {
    throw new AppError('not_found', `there is no account ${idOrName ?? ''}; see: account list`);
  }
  return account;
}

async function allKeys(directory: Directory, accountId: string): Promise<ApiKeyRecord[]> {
  const keys: ApiKeyRecord[] = [];
  let cursor: string | undefined;
  do {
    const page = await directory.apiKeys.list(accountId, { limit: 100, cursor });
    keys.push(...page.items);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return keys;
}

async function backup(directory: Directory, file: string): Promise<object> {
  const accounts = await directory.accounts.list();
  const lists = await Promise.all(accounts.map(({ id }) => allKeys(directory, id)));
  const keys = lists.flat();
  await writeFile(file, JSON.stringify({ version: 1, accounts, keys }, null, 2), { mode: 0o600 });
  return { file, accounts: accounts.length, keys: keys.length };
}

async function restore(directory: Directory, file: string): Promise<object> {
  const data = compile(Backup)(
    parseJson(await readFile(file, 'utf8'), { valuesMax: Infinity }),
    file,
  );
  for (const account of data.accounts) await directory.accounts.restore(account);
  for (const key of data.keys) await directory.apiKeys.restore(key);
  return { accounts: data.accounts.length, keys: data.keys.length };
}

/** Each command by its words; what it returns is printed. */
const commands: Readonly<
  Record<string, (context: Context, words: readonly string[]) => Promise<object>>
> = {
  'account create': async ({ directory }, [name]) => {
    if (name === undefined || !/^[\w-]{1,64}$/u.test(name)) {
      throw new UsageError('an account name has 1 to 64 letters, digits, - or _');
    }
    return directory.accounts.create(name);
  },
  'account list': async ({ directory }) => ({ accounts: await directory.accounts.list() }),
  'account allow-region': ({ directory }, words) => setRegion(directory, words, true),
  'account deny-region': ({ directory }, words) => setRegion(directory, words, false),
  'key create': async ({ directory, keyName }, [account]) => {
    const { record, token } = await directory.apiKeys.create(
      await findAccount(directory, account),
      { name: keyName },
    );
    return { id: record.id, name: record.name, token };
  },
  'key list': async ({ directory }, [account]) => ({
    keys: await allKeys(directory, (await findAccount(directory, account)).id),
  }),
  'key delete': async ({ directory }, [account, keyId = '']) => {
    const removed = await directory.apiKeys.remove(
      (await findAccount(directory, account)).id,
      keyId,
    );
    if (!removed) throw new AppError('not_found', 'the account has no such key; see: key list');
    return { deleted: keyId };
  },
  backup: ({ directory }, [file]) => backup(directory, requireFile(file)),
  restore: ({ directory }, [file]) => restore(directory, requireFile(file)),
  rebuild: ({ directory, storageDir }) => rebuildDisks(directory, storageDir),
};

async function setRegion(
  directory: Directory,
  [name, region = '']: readonly string[],
  allowed: boolean,
): Promise<object> {
  if (!new RegExp(regionPattern, 'u').test(region)) {
    throw new UsageError('a region is written <cloud>-<region>, e.g. aws-us-east-1');
  }
  const account = await findAccount(directory, name);
  await directory.accounts.setRegionAccess(account.id, region, allowed);
  return { id: account.id, region, allowed };
}

function requireFile(file: string | undefined): string {
  if (file === undefined) throw new UsageError('a file name is missing');
  return file;
}

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      json: { type: 'boolean', default: false },
      help: { type: 'boolean', short: 'h', default: false },
      name: { type: 'string', default: 'default' },
    },
  });
  if (values.help) {
    process.stdout.write(USAGE);
    return;
  }
  const name = Object.keys(commands).find(
    (words) => positionals.slice(0, words.split(' ').length).join(' ') === words,
  );
  const command = name === undefined ? undefined : commands[name];
  if (name === undefined || command === undefined) throw new UsageError('unknown command');

  const reader = new ConfigReader(process.env);
  const redisUrl = reader.string('REDIS_URL');
  const region = reader.string('REGION', { pattern: regionPattern });
  const storageDir = reader.string('STORAGE_DIR');
  reader.finish();
  const redis = connectRedis(redisUrl, () => undefined);
  try {
    await redis.connect();
    const directory = openDirectory(redis, region);
    const context = { directory, storageDir, keyName: values.name };
    const result = await command(context, positionals.slice(name.split(' ').length));
    process.stdout.write(`${JSON.stringify(result, null, values.json ? undefined : 2)}\n`);
  } finally {
    redis.disconnect();
  }
}

main().catch((error: unknown) => {
  process.stderr.write(`admin: ${toError(error).message}\n`);
  if (error instanceof UsageError) process.stderr.write(`\n${USAGE}`);
  process.exitCode = 1;
});
