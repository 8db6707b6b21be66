import type { ApiKey } from '@berth/sdk';
import { type Command, InvalidArgumentError } from '@commander-js/extra-typings';
import { group, leaf } from '../command.ts';
import { opened } from '../context.ts';
import { Failure, NotFoundFailure } from '../failure.ts';
import type { Shown } from '../output.ts';
import { formatAge } from '../text.ts';
import { duration, given } from '../values.ts';

const ID_SHOWN = 12;
const SECOND_MS = 1000;

/** Scopes that an account's own keys can give. */
const SCOPES = ['read', 'disk', 'sandbox', 'admin'] as const;
type Scope = (typeof SCOPES)[number];

/** Collects the scopes of an option that may be given more than once. */
function eachScope(value: string, former: readonly Scope[] = []): Scope[] {
  const scope = SCOPES.find((known) => known === value);
  if (scope === undefined) throw new InvalidArgumentError(`It is one of ${SCOPES.join(', ')}.`);
  return [...former, scope];
}

/** The time of the API that is so many seconds from now. */
const timeIn = (seconds: number): string =>
  new Date(Date.now() + seconds * SECOND_MS).toISOString();

const KEYS: Shown<ApiKey> = {
  id: ({ id }) => id,
  columns: [
    { head: 'NAME', of: ({ name }) => name, gives: true },
    { head: 'DESCRIPTION', of: ({ description }) => description ?? '', gives: true },
    { head: 'SUFFIX', of: ({ tokenSuffix }) => tokenSuffix },
    { head: 'SCOPES', of: ({ scopes }) => scopes.join(', ') },
    { head: 'CREATED', of: ({ createdAt }) => formatAge(createdAt) },
    { head: 'LAST USED', of: ({ lastUsedAt }) => formatAge(lastUsedAt) || 'never' },
    { head: 'EXPIRES', of: ({ expiresAt }) => expiresAt ?? 'never' },
    { head: 'ID', of: ({ id }) => id.slice(0, ID_SHOWN) },
  ],
};

const createCommand = () =>
  leaf('create')
    .description('Make an API key. It is printed only this once; --quiet prints nothing else.')
    .argument('<name>')
    .option('--description <text>', 'for people')
    .option('--scope <scope>', `what it may do: ${SCOPES.join(', ')}; more than once`, eachScope)
    .option('--expires <time>', 'it stops working after so long, such as 12h or 30d', duration)
    .action(async (name, { description, scope, expires, ...options }) => {
      const { output, berth } = await opened(options);
      const expiresAt = expires === undefined ? undefined : timeIn(expires);
      const fields = given({ description, scopes: scope, expiresAt });
      const key = await berth.apiKeys.create({ name, ...fields });
      output.done(key.token, key, key.token);
    });

const lsCommand = () =>
  leaf('ls')
    .description('List the API keys, without the keys themselves.')
    .action(async (options) => {
      const { output, berth } = await opened(options);
      output.list(await berth.apiKeys.list().toArray(), KEYS);
    });

/** @throws Failure unless exactly one key is meant */
function chosen(keys: readonly ApiKey[], wanted: string): ApiKey {
  const found = keys.filter(
    ({ id, name, tokenSuffix }) =>
      name === wanted || tokenSuffix === wanted || (wanted.length > 3 && id.startsWith(wanted)),
  );
  const [key, ...others] = found;
  if (key !== undefined && others.length === 0) return key;
  const next = 'see berth key ls';
  if (key === undefined) throw new NotFoundFailure(`there is no key ${wanted}`, next);
  throw new Failure(`${wanted} names ${found.length} keys`, 'give the beginning of an id');
}

const rmCommand = () =>
  leaf('rm')
    .description('Delete API keys; they stop working at once.')
    .argument('<keys...>', 'their names, last characters, or the beginning of their ids')
    .option('--dry-run', 'only say what would be deleted')
    .action(async (names, { dryRun = false, ...options }) => {
      const { output, berth } = await opened(options);
      const all = await berth.apiKeys.list().toArray();
      for (const { id, name } of names.map((wanted) => chosen(all, wanted))) {
        if (!dryRun) await berth.apiKeys.delete(id);
        const value = { id, name, deleted: !dryRun };
        output.done(dryRun ? `would delete ${name} (${id})` : `${name} is deleted`, value, id);
      }
    });

/** `berth key …` */
export const keyCommand = (): Command =>
  group('key', 'API keys of the account')
    .addCommand(createCommand())
    .addCommand(lsCommand())
    .addCommand(rmCommand());
