/** Writes .local/env: the addresses and a valid API key for clients on this computer. */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { Type, type Static, type TSchema } from 'typebox';
import { compile } from '../shared/validate.ts';
import { readEnvFile, required, writeEnvFile, type Env } from './env-file.ts';
import { paths } from './local-paths.ts';
import { parseJson } from '../shared/json.ts';

const ACCOUNT = 'demo';

const Account = Type.Object({ id: Type.String(), name: Type.String() });
const Accounts = Type.Object({ accounts: Type.Array(Account) });
const CreatedKey = Type.Object({ token: Type.String() });

export async function provideClientEnv(config: Env): Promise<Env> {
  const kept = (await readEnvFile(paths.clientEnv))['API_KEY'];
  const baseUrl = required(config, 'PUBLIC_BASE_URL');
  const key =
    kept !== undefined && (await isAccepted(baseUrl, kept)) ? kept : await createKey(config);
  const env = {
    BASE_URL: baseUrl,
    S3_URL: required(config, 'AGENT_PUBLIC_URL'),
    INGRESS_ZONE: required(config, 'INGRESS_ZONE'),
    INGRESS_PORT: required(config, 'INGRESS_PORT'),
    REGION: required(config, 'REGION'),
    API_KEY: key,
  };
  await writeEnvFile(paths.clientEnv, env);
  return env;
}

/** Whether the key is still valid: it is not when Redis was emptied since it was made. */
async function isAccepted(baseUrl: string, key: string): Promise<boolean> {
  const headers = { authorization: `Bearer ${key}` };
  const response = await fetch(`${baseUrl}/api/disks?limit=1`, { headers });
  await response.body?.cancel();
  return response.status !== 401;
}

async function createKey(config: Env): Promise<string> {
  const account = await demoAccount(config);
  const key = await admin(config, CreatedKey, 'key', 'create', account, '--name', 'local');
  return key.token;
}

async function demoAccount(config: Env): Promise<string> {
  const { accounts } = await admin(config, Accounts, 'account', 'list');
  const account =
    accounts.find(({ name }) => name === ACCOUNT) ??
    (await admin(config, Account, 'account', 'create', ACCOUNT));
  return account.id;
}

async function admin<T extends TSchema>(
  config: Env,
  answer: T,
  ...args: string[]
): Promise<Static<T>> {
  const { stdout } = await promisify(execFile)(
    process.execPath,
    ['scripts/admin.ts', ...args, '--json'],
    { cwd: paths.root, env: { ...process.env, ...config } },
  );
  return compile(answer)(parseJson(stdout), `answer of admin ${args.join(' ')}`);
}
