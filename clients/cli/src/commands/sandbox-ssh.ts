import { Duplex } from 'node:stream';
import { join, resolve } from 'node:path';
import { leaf } from '../command.ts';
import { opened, openedForSessions } from '../context.ts';
import { findSandboxForSession } from '../find.ts';
import { configDirectory } from '../profiles.ts';
import { visible } from '../text.ts';

const keyDirectory = (): string => join(configDirectory(), 'ssh');
const SUFFIX = /\.berth$/u;

/** Loaded by those who need it: other commands begin faster without it. */
const loadKeys = () => import('../ssh/host-key.ts');

export const sshProxyCommand = () =>
  leaf('ssh-proxy')
    .summary('be the SSH server of a sandbox, for ProxyCommand of ssh')
    .description(
      `Speak the server's part of SSH on standard input and output, for a sandbox: what ssh runs as
ProxyCommand. "berth sandbox ssh-config" prints what belongs into ~/.ssh/config.`,
    )
    .argument('<sandbox>', 'its name or id; .berth at the end is left out')
    .action(async (name, options) => {
      const { berth } = await openedForSessions(options);
      const sandbox = await findSandboxForSession(berth, name.replace(SUFFIX, ''));
      if (sandbox.status === 'paused') await sandbox.resume();
      const [{ serveSsh }, { hostKey }] = await Promise.all([
        import('../ssh/server.ts'),
        loadKeys(),
      ]);
      const stream = Duplex.from({ readable: process.stdin, writable: process.stdout });
      await serveSsh(sandbox, stream, await hostKey(keyDirectory()), (error) => {
        process.stderr.write(`berth: ${visible((error as Error).message)}\n`);
      });
      process.exit(); // Standard input may still be open.
    });

/** A word as ssh_config reads it. */
const word = (text: string): string => (/[\s"#]/u.test(text) ? `"${text}"` : text);

/** How this program was called, so that ssh finds it as well. */
const ourselves = (): string =>
  [process.execPath, resolve(process.argv[1] ?? 'berth')].map((each) => word(each)).join(' ');

export const sshConfigCommand = () =>
  leaf('ssh-config')
    .summary('print what ~/.ssh/config needs for ssh to sandboxes')
    .description(
      `Print what ~/.ssh/config needs, so that ssh, scp, sftp, rsync and editors reach every sandbox as
<name>.berth. With names, each gets an entry of its own: editors list those.`,
    )
    .argument('[sandboxes...]', 'names or ids')
    .action(async (names, options) => {
      const { output } = await opened(options);
      const { hostKey, HOST_PATTERN, knownHostsPath } = await loadKeys();
      await hostKey(keyDirectory()); // So that the file of known hosts is there.
      const profile = options.profile === undefined ? '' : ` --profile ${word(options.profile)}`;
      const hosts = [...names.map((name) => `${name.replace(SUFFIX, '')}.berth`), HOST_PATTERN];
      const entry = [
        `Host ${hosts.join(' ')}`,
        `  ProxyCommand ${ourselves()} sandbox ssh-proxy${profile} -- '%n'`,
        '  User root',
        `  UserKnownHostsFile ${word(knownHostsPath(keyDirectory()))}`,
        '  GlobalKnownHostsFile none',
        '  StrictHostKeyChecking yes',
      ].join('\n');
      if (output.isJson) output.json({ ssh_config: entry });
      else output.text(`${entry}\n`);
    });
