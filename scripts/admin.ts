import { readFile } from 'node:fs/promises';
import { Command, CommanderError, Help } from 'commander';
import Type from 'typebox';
import {
  confirmingReplicas,
  readEncryptionKeys,
  readRedisTarget,
} from '../shared/settings/cluster-config.ts';
import { DIRECTORY_LIMITS } from '../shared/directory/limits.ts';
import { accountLimitNames, accountLimitUnits } from '../shared/directory/account-limits.ts';
import { type Directory, openDirectory } from '../shared/directory/directory.ts';
import { openRedis } from '../shared/directory/open-redis.ts';
import { AppError, toError } from '../shared/errors.ts';
import { accountIdPattern, regionPattern } from '../shared/ids.ts';
import { FULL_SCOPES, type KeyScope, keyScopes } from '../shared/key-scopes.ts';
import { AgentSettings } from '../shared/settings/agent-settings.ts';
import { ClusterSettings, RedisSettings } from '../shared/settings/cluster-settings.ts';
import { readSettings } from '../shared/settings/read-settings.ts';
import { MINUTE_MS } from '../shared/units.ts';
import { compile } from '../shared/validate.ts';
import { describeSettings } from './describe-settings.ts';
import { readFileIfExists, writePrivateFile } from './env-file.ts';
import { inviteHost } from './host-invitation.ts';
import { commands } from './local-paths.ts';
import { rebuildDisks } from './rebuild-disks.ts';
import { resealAll, sealedByKey } from './secrets.ts';
import { parseJson } from '../shared/json.ts';
import {
  allKeys,
  createKey,
  deleteKey,
  findAccount,
  type KeyOptions,
  setLimits,
} from './admin-accounts.ts';

const Backup = Type.Object({
  version: Type.Literal(1),
  accounts: Type.Array(
    Type.Object({
      id: Type.String({ pattern: accountIdPattern }),
      name: Type.String({ minLength: 1 }),
      createdAt: Type.String({ format: 'date-time' }),
      previewRegions: Type.Array(Type.String()),
      /** Backups of earlier versions have none. */
      limits: Type.Optional(
        Type.Partial(
          Type.Object(
            Object.fromEntries(
              accountLimitNames.map((name) => [name, Type.Integer({ minimum: 0 })]),
            ),
          ),
        ),
      ),
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
      /** Backups of earlier versions have none: their keys may do everything. */
      scopes: Type.Optional(Type.Array(Type.Enum([...keyScopes]))),
      expiresAt: Type.Optional(Type.String({ format: 'date-time' })),
      accountId: Type.String({ pattern: accountIdPattern }),
      organization: Type.String(),
    }),
  ),
});

const checkBackup = compile(Backup);

const { STORAGE_DIR } = AgentSettings.properties;
const { ENCRYPTION_KEY } = ClusterSettings.properties;
const Settings = Type.Object({
  ...RedisSettings.properties,
  STORAGE_DIR: Type.Optional(STORAGE_DIR),
});
const Keys = Type.Object({ ENCRYPTION_KEY });

class UsageError extends Error {}

/** The cluster that a command works on. */
interface Cluster {
  readonly directory: Directory;
  /** Undefined: a control node need not see the storage. */
  readonly storageDir: string | undefined;
}

async function backup(directory: Directory, file: string): Promise<object> {
  const known = await directory.accounts.list();
  const accounts = await Promise.all(
    known.map(async (account) => ({
      ...account,
      limits: await directory.accountLimits.get(account.id),
    })),
  );
  const lists = await Promise.all(accounts.map(({ id }) => allKeys(directory, id)));
  const keys = lists.flat();
  if (accounts.length === 0) await refuseToEmpty(file);
  await writePrivateFile(file, JSON.stringify({ version: 1, accounts, keys }, null, 2));
  return { file, accounts: accounts.length, keys: keys.length };
}

/** Redis may have lost its data, and then this file may have the only copy. @throws AppError */
async function refuseToEmpty(file: string): Promise<void> {
  const former = await readFileIfExists(file);
  if (former === undefined || readBackup(former, file).accounts.length === 0) return;
  const message = `there are no accounts, and ${file} has some: it stays; see the command restore`;
  throw new AppError('bad_request', message);
}

/** @throws AppError `bad_request` when it is no backup */
const readBackup = (text: string, file: string) =>
  checkBackup(parseJson(text, { valuesMax: Infinity }), file);

async function restore(directory: Directory, file: string): Promise<object> {
  const data = readBackup(await readFile(file, 'utf8'), file);
  for (const { limits = {}, ...account } of data.accounts) {
    await directory.accounts.restore(account);
    await directory.accountLimits.change(account.id, limits);
  }
  for (const key of data.keys) {
    await directory.apiKeys.restore({ ...key, scopes: key.scopes ?? [...FULL_SCOPES] });
  }
  return { accounts: data.accounts.length, keys: data.keys.length };
}

async function setRegion(
  directory: Directory,
  { account, region, allowed }: { account: string; region: string; allowed: boolean },
): Promise<object> {
  const { id } = await findAccount(directory, account);
  await directory.accounts.setRegionAccess(id, region, allowed);
  return { id, region, allowed };
}

/**
 * Frees a disk that a sandbox of a dead host holds.
 * @throws AppError when that host may be alive
 */
async function breakHold(directory: Directory, account: string, diskId: string): Promise<object> {
  const { id: accountId } = await findAccount(directory, account);
  const disk = await directory.disks.get(accountId, diskId);
  if (disk === undefined) throw new AppError('not_found', `the account has no disk ${diskId}`);
  const { leaseHolder: hostId, isHeld = false } = disk;
  if (hostId === undefined || !isHeld) {
    throw new AppError('bad_request', `no sandbox holds disk ${diskId}: there is nothing to break`);
  }
  if ((await directory.hosts.find(hostId)) !== undefined) {
    const message = `${hostId} announced itself seconds ago; stop its sandboxes, or turn it off first`;
    throw new AppError('disk_in_use', message);
  }
  if (await directory.diskLeases.breakHold({ accountId, diskId }, hostId)) {
    return { disk: diskId, freedFrom: hostId };
  }
  throw new AppError('disk_in_use', `another host has got disk ${diskId} meanwhile`);
}

function parseAccountName(text: string): string {
  if (/^[\w-]{1,64}$/u.test(text)) return text;
  throw new UsageError('an account name has 1 to 64 letters, digits, - or _');
}

/** `none` stays a word: commander makes an empty text of the null that a parser returns. */
function parseLimit(text: string): number | 'none' {
  if (text === 'none') return text;
  if (/^\d{1,15}$/u.test(text)) return Number(text);
  throw new UsageError('a limit is a whole number, or none');
}

function parseScope(text: string, others: KeyScope[] = []): KeyScope[] {
  const scope = keyScopes.find((each) => each === text);
  if (scope !== undefined) return [...others, scope];
  throw new UsageError(`a scope is one of ${keyScopes.join(', ')}`);
}

function parseEnd(text: string): string {
  const end = Date.parse(text);
  if (/^\d{4}-\d\d-\d\d(?:T.+)?$/u.test(text) && end > Date.now()) {
    return new Date(end).toISOString();
  }
  throw new UsageError('an end is a date or time to come, e.g. 2027-01-31 or 2027-01-31T12:00:00Z');
}

function parseMinutes(text: string): number {
  const max = DIRECTORY_LIMITS.joinTokenTtlMsMax / MINUTE_MS;
  if (/^[1-9]\d{0,4}$/u.test(text) && Number(text) <= max) return Number(text);
  throw new UsageError(`the life of a token is 1 to ${max} minutes`);
}

function parseRegion(text: string): string {
  if (new RegExp(regionPattern, 'u').test(text)) return text;
  throw new UsageError('a region is written <cloud>-<region>, e.g. aws-us-east-1');
}

function print(result: object): void {
  const { json = false } = program.opts<{ json?: boolean }>();
  process.stdout.write(`${JSON.stringify(result, null, json ? undefined : 2)}\n`);
}

/** Connects to the cluster that the environment names, and prints the work's result. */
async function report(work: (cluster: Cluster) => Promise<object>): Promise<void> {
  const settings = readSettings(Settings, process.env);
  const { REGION: region, STORAGE_DIR: storageDir } = settings;
  const target = { redis: readRedisTarget(settings), region };
  const { redis, confirmation, close } = await openRedis(
    { ...target, confirmingReplicas: confirmingReplicas(settings) },
    () => undefined,
  );
  try {
    await confirmation.confirmed(async () => {
      print(await work({ directory: openDirectory(redis, region), storageDir }));
    });
  } finally {
    close();
  }
}

const PROGRAM = commands.admin;

/** A command as the help lists it, such as `key delete <account> <key-id>`. */
function commandTerm(command: Command): string {
  const usage = new Help().commandUsage(command).replace(`${PROGRAM} `, '');
  return command.options.length === 0 ? usage.replace(' [options]', '') : usage;
}

const program: Command = new Command(PROGRAM)
  .description("The operator's commands. An account is given by its name or id.")
  .option('--json', 'print the result on one line')
  .configureHelp({
    showGlobalOptions: true,
    visibleCommands: commandsOf,
    subcommandTerm: commandTerm,
  })
  .configureOutput({ writeErr: () => undefined }) // Errors are printed in one place, below.
  .showSuggestionAfterError(false) // An error is one line.
  .exitOverride();

/** The commands that do something, so that one page of help shows them all. */
function commandsOf({ commands: all }: { readonly commands: readonly Command[] }): Command[] {
  return all.flatMap((each) => (each.commands.length === 0 ? [each] : commandsOf(each)));
}

function addAccountCommands(group: Command): void {
  group
    .command('create')
    .description('make an account')
    .argument('<name>', '1 to 64 letters, digits, - or _', parseAccountName)
    .action((name: string) => report(({ directory }) => directory.accounts.create(name)));
  group
    .command('list')
    .description('list the accounts')
    .action(() => report(async ({ directory }) => ({ accounts: await directory.accounts.list() })));
  for (const [verb, description, allowed] of [
    ['allow-region', 'let it create disks in a preview region', true],
    ['deny-region', 'take that right back', false],
  ] as const) {
    group
      .command(verb)
      .description(description)
      .argument('<account>')
      .argument('<region>', 'for example aws-us-east-1', parseRegion)
      .action((account: string, region: string) =>
        report(({ directory }) => setRegion(directory, { account, region, allowed })),
      );
  }
}

function addLimitCommand(group: Command): void {
  const limits = group
    .command('limits')
    .description('show or set what an account may have; none takes a limit away')
    .argument('<account>');
  for (const name of accountLimitNames) {
    const flag = name.replaceAll(/[A-Z]/gu, (letter) => `-${letter.toLowerCase()}`);
    limits.option(`--${flag} <max>`, accountLimitUnits[name], parseLimit);
  }
  limits.action((account: string, given: Readonly<Record<string, number | 'none'>>) => {
    const entries = Object.entries(given);
    const changes = entries.map(([name, max]) => [name, max === 'none' ? null : max] as const);
    return report(({ directory }) => setLimits(directory, account, Object.fromEntries(changes)));
  });
}

function addKeyCommands(group: Command): void {
  group
    .command('create')
    .description('make an API key; printed once')
    .argument('<account>')
    .option('--name <name>', 'name of the key', 'default')
    .option('--scope <scope>', `${keyScopes.join(', ')}; may be repeated`, parseScope)
    .option('--expires-at <time>', 'when it stops working, e.g. 2027-01-31', parseEnd)
    .action((account: string, options: KeyOptions) =>
      report(({ directory }) => createKey(directory, account, options)),
    );
  group
    .command('list')
    .description("list an account's API keys, without their secrets")
    .argument('<account>')
    .action((account: string) =>
      report(async ({ directory }) => ({
        keys: await allKeys(directory, (await findAccount(directory, account)).id),
      })),
    );
  group
    .command('delete')
    .description('delete an API key')
    .argument('<account>')
    .argument('<key-id>')
    .action((account: string, keyId: string) =>
      report(({ directory }) => deleteKey(directory, account, keyId)),
    );
}

function addDiskCommands(group: Command): void {
  group
    .command('break-hold')
    .description('free a disk held by a host that is off for good; see docs/mounts.md')
    .argument('<account>')
    .argument('<disk-id>')
    .action((account: string, diskId: string) =>
      report(({ directory }) => breakHold(directory, account, diskId)),
    );
}

function addHostCommands(group: Command): void {
  group
    .command('invite')
    .description('make a token with which one new host joins; printed once')
    .option('--minutes <minutes>', 'how long it lives, at most a day', parseMinutes, 60)
    .action(({ minutes }: { minutes: number }) =>
      report(({ directory }) => inviteHost(directory.hostInvitations, process.env, minutes)),
    );
}

function addBackupCommands(group: Command): void {
  group
    .command('backup')
    .description('save accounts and API keys (hashes only)')
    .argument('<file>')
    .action((file: string) => report(({ directory }) => backup(directory, file)));
  group
    .command('restore')
    .description('put the accounts and API keys of a backup into Redis')
    .argument('<file>')
    .action((file: string) => report(({ directory }) => restore(directory, file)));
  group
    .command('rebuild')
    .description('list the disks on the storage in Redis again')
    .action(() =>
      report(async ({ directory, storageDir }) => {
        const result = await rebuildDisks(directory, mustHaveStorage(storageDir));
        if (result.failed.length > 0) process.exitCode = 1;
        return result;
      }),
    );
}

/** @throws UsageError */
function mustHaveStorage(storageDir: string | undefined): string {
  if (storageDir !== undefined) return storageDir;
  throw new UsageError('STORAGE_DIR is not set: set it to where this machine has the storage');
}

const ring = () => readEncryptionKeys(readSettings(Keys, process.env));

function addSecretCommands(group: Command): void {
  group
    .command('status')
    .description('count what each key of ENCRYPTION_KEY has sealed in this region')
    .action(() =>
      report(({ directory, storageDir }) =>
        sealedByKey(directory, ring(), mustHaveStorage(storageDir)),
      ),
    );
  group
    .command('reseal')
    .description('seal it anew with the first key; see docs/operations.md')
    .action(() =>
      report(async ({ directory, storageDir }) => {
        const result = await resealAll(directory, ring(), mustHaveStorage(storageDir));
        if (result.failed.length > 0) process.exitCode = 1;
        return result;
      }),
    );
}

const accounts = program.command('account').description('accounts, their regions and limits');
addAccountCommands(accounts);
addLimitCommand(accounts);
addKeyCommands(program.command('key').description('API keys'));
addDiskCommands(program.command('disk').description('disks'));
addHostCommands(program.command('host').description('hosts'));
addSecretCommands(program.command('secrets').description('rotation of ENCRYPTION_KEY'));
addBackupCommands(program);
program
  .command('settings')
  .description('list all settings of control and agents')
  .action(() => print(Object.fromEntries(describeSettings())));

/** The command that these words name, or the group that lacks the rest of them. */
function namedBy(words: readonly string[]): Command {
  let named = program;
  for (const word of words.filter((each) => !each.startsWith('-'))) {
    const next = named.commands.find((each) => each.name() === word);
    if (next === undefined) break;
    named = next;
  }
  return named;
}

function reportFailure(thrown: unknown): void {
  const isUsageError = thrown instanceof UsageError || thrown instanceof CommanderError;
  const { message } = toError(thrown);
  // Commander shows its help where a command is missing.
  const said = message === '(outputHelp)' ? 'unknown command' : message.replace(/^error: /u, '');
  process.stderr.write(`admin: ${said}\n`);
  if (isUsageError) {
    process.stderr.write(`\n${namedBy(process.argv.slice(2)).helpInformation()}`);
  }
  process.exitCode = 1;
}

try {
  await program.parseAsync();
} catch (error) {
  const isHelp = error instanceof CommanderError && error.exitCode === 0;
  if (!isHelp) reportFailure(error);
}
