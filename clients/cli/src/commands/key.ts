import type { ApiKey } from '@berth/sdk';
import type { Command } from '@commander-js/extra-typings';
import { group, leaf } from '../command.ts';
import { opened } from '../context.ts';
import { Failure } from '../failure.ts';
import type { Shown } from '../output.ts';
import { formatAge } from '../text.ts';
import { given } from '../values.ts';

const ID_SHOWN = 12;

const KEYS: Shown<ApiKey> = {
  id: ({ id }) => id,
  columns: [
    { head: 'NAME', of: ({ name }) => name, gives: true },
    { head: 'DESCRIPTION', of: ({ description }) => description ?? '', gives: true },
    { head: 'ENDS IN', of: ({ tokenSuffix }) => tokenSuffix },
    { head: 'CREATED', of: ({ createdAt }) => formatAge(createdAt) },
    { head: 'LAST USED', of: ({ lastUsedAt }) => formatAge(lastUsedAt) || 'never' },
    { head: 'ID', of: ({ id }) => id.slice(0, ID_SHOWN) },
  ],
};

const createCommand = () =>
  leaf('create')
    .description('Make an API key. It is printed only this once; --quiet prints nothing else.')
    .argument('<name>')
    .option('--description <text>')
    .action(async (name, { description, ...options }) => {
      const { output, berth } = await opened(options);
      const key = await berth.apiKeys.create({ name, ...given({ description }) });
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
  if (key === undefined) throw new Failure(`there is no key ${wanted}`, next);
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
