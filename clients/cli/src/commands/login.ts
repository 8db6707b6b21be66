import { text } from 'node:stream/consumers';
import { Berth } from '@berth/sdk';
import { leaf } from '../command.ts';
import { Failure, UsageFailure } from '../failure.ts';
import { loadNetwork } from '../net/network.ts';
import { Output } from '../output.ts';
import { profilePath, type Profile, readProfiles, writeProfiles } from '../profiles.ts';

interface Asked {
  readonly url?: string | undefined;
  readonly keyStdin?: true | undefined;
}

/** Asks for what the options do not say. @throws UsageFailure when nobody can be asked */
async function ask({ url, keyStdin }: Asked): Promise<Profile> {
  const isAskable = process.stdin.isTTY && process.stderr.isTTY;
  if (!isAskable && (url === undefined || keyStdin !== true)) {
    const next = 'give --url, and the key with --key-stdin';
    throw new UsageFailure('there is no terminal to ask at', next);
  }
  const clack = await import('@clack/prompts');
  const output = process.stderr;
  const asked =
    url ?? (await clack.text({ message: 'URL of the server', output, validate: checkUrl }));
  if (clack.isCancel(asked)) throw new Failure('nothing was changed');
  if (keyStdin === true) {
    const apiKey = (await text(process.stdin)).trim();
    if (apiKey === '') throw new UsageFailure('stdin has no API key', 'write --key-stdin <file');
    return { url: asked, apiKey };
  }
  const apiKey = await clack.password({ message: 'API key', output });
  if (clack.isCancel(apiKey)) throw new Failure('nothing was changed');
  return { url: asked, apiKey: apiKey.trim() };
}

const checkUrl = (url: string | undefined): string | undefined =>
  url !== undefined && /^https?:$/u.test(URL.parse(url)?.protocol ?? '')
    ? undefined
    : 'write it as https://berth.example';

/** @throws UnauthorizedError, ConnectionError when they do not belong together */
async function verify({ url, apiKey }: Profile): Promise<void> {
  const berth = new Berth({ baseUrl: url, apiKey, retries: 1, ...(await loadNetwork(false)) });
  for await (const _page of berth.disks.list({ limit: 1 }).pages()) break;
}

export const loginCommand = () =>
  leaf('login')
    .summary('keep the URL and API key of a server')
    .description(
      `Keep the URL and API key of a server in a profile, after trying them, and use it from now on.
--profile names the profile, default "default".`,
    )
    .option('--url <url>', 'of the server, such as https://berth.example')
    .option('--key-stdin', 'read the API key from stdin')
    .action(async ({ profile: name = 'default', url, keyStdin, ...options }) => {
      const wrong = url === undefined ? undefined : checkUrl(url);
      if (wrong !== undefined) throw new UsageFailure(`${url} is no URL of a server`, wrong);
      const file = await readProfiles();
      const profile = await ask({ url, keyStdin });
      await verify(profile);
      const profiles = { ...file.profiles, [name]: profile };
      await writeProfiles({ current: name, profiles });
      new Output(options).done(
        `logged in to ${profile.url}; profile ${name} is in ${profilePath()}`,
        { profile: name, url: profile.url },
        name,
      );
    });
