import type { Command } from '@commander-js/extra-typings';
import { group, leaf } from '../command.ts';
import { findLogin } from '../context.ts';
import { NotFoundFailure } from '../failure.ts';
import { Output, type Shown } from '../output.ts';
import { type ProfileFile, readProfiles, writeProfiles } from '../profiles.ts';

interface Row {
  readonly profile: string;
  readonly url: string;
  readonly current: boolean;
}

const PROFILES: Shown<Row> = {
  id: ({ profile }) => profile,
  columns: [
    { head: '', of: ({ current }) => (current ? '*' : '') },
    { head: 'PROFILE', of: ({ profile }) => profile },
    { head: 'URL', of: ({ url }) => url, gives: true },
  ],
};

const rowsOf = ({ current, profiles }: ProfileFile): Row[] =>
  Object.entries(profiles).map(([profile, { url }]) => ({
    profile,
    url,
    current: profile === current,
  }));

/** @throws NotFoundFailure when there is none of that name */
function mustHave({ profiles }: ProfileFile, name: string): void {
  if (Object.hasOwn(profiles, name)) return;
  throw new NotFoundFailure(`there is no profile ${name}`, 'see berth profile ls');
}

const lsCommand = () =>
  leaf('ls')
    .description('List the profiles.')
    .action(async (options) => {
      new Output(options).list(rowsOf(await readProfiles()), PROFILES);
    });

const showCommand = () =>
  leaf('show')
    .description('Say which server is used, and why it is this one.')
    .action(async ({ profile, ...options }) => {
      const { url, source } = await findLogin(profile);
      const fields = [
        ['url', url],
        ['from', source],
      ] as const;
      new Output(options).record({ url, source }, fields, url);
    });

const useCommand = () =>
  leaf('use')
    .description('Use a profile from now on.')
    .argument('<name>')
    .action(async (name, options) => {
      const file = await readProfiles();
      mustHave(file, name);
      await writeProfiles({ ...file, current: name });
      new Output(options).done(`profile ${name} is used from now on`, { current: name }, name);
    });

const rmCommand = () =>
  leaf('rm')
    .description('Forget a profile with its API key. The key itself goes on working.')
    .argument('<name>')
    .option('--dry-run', 'only say what would be forgotten')
    .action(async (name, { dryRun = false, ...options }) => {
      const file = await readProfiles();
      mustHave(file, name);
      const rest = Object.entries(file.profiles).filter(([each]) => each !== name);
      const current = file.current === name ? rest[0]?.[0] : file.current;
      const profiles = Object.fromEntries(rest);
      if (!dryRun)
        await writeProfiles(current === undefined ? { profiles } : { current, profiles });
      const value = { profile: name, deleted: !dryRun };
      const done = dryRun ? `would forget profile ${name}` : `profile ${name} is forgotten`;
      new Output(options).done(done, value, name);
    });

/** `berth profile …` */
export const profileCommand = (): Command =>
  group('profile', 'servers that berth login has kept')
    .addCommand(lsCommand())
    .addCommand(showCommand())
    .addCommand(useCommand())
    .addCommand(rmCommand());
