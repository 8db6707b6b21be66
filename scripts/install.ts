/** Writes configuration, users and systemd units of roles, below a root directory. */
import { parseArgs } from 'node:util';
import { readEnvFile } from './env-file.ts';
import { installRole, renewUnits, ROLES } from './install-roles.ts';
import { commands } from './local-paths.ts';

const USAGE = `usage: ${commands.install} redis|control|agent [--root <directory>] [--cluster <file>]
                       [--address <address>] [--redis-url <url>]
       ${commands.install} units [--root <directory>]
Writes what the role needs on this host: /etc/berth/<role>.env (or redis.conf), the users of
services, and berth-<role>.service. Files that are there keep their values. With 'units' it writes
the units alone, of the roles that this host has: after an upgrade, or when directories have changed.
--root      writes below this directory instead of /
--cluster   /etc/berth/cluster.env of the first control node: the cluster to belong to
--address   address of this host that the other hosts reach; 127.0.0.1 by default
--redis-url Redis of the cluster, when its role was not installed on this host
A host that is to be an agent alone needs no file: see ${commands.agent} join --help`;

async function main(): Promise<void> {
  const text = { type: 'string' } as const;
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      root: text,
      cluster: text,
      address: text,
      'redis-url': text,
      help: { type: 'boolean' },
    },
  });
  const { root = '/', address = '127.0.0.1' } = values;
  const [what] = positionals;
  if (what === 'units' && positionals.length === 1) {
    const written = await renewUnits(root);
    console.log(`berth: wrote ${written.join(', ') || 'nothing: this host has no role'}`);
    return;
  }
  const role = ROLES.find((each) => each === what);
  if (values.help === true || role === undefined || positionals.length !== 1) {
    console.log(USAGE);
    process.exitCode = values.help === true ? 0 : 2;
    return;
  }
  const cluster = values.cluster === undefined ? {} : await readEnvFile(values.cluster);
  const redisUrl = values['redis-url'];
  const written = await installRole(role, { root, address, cluster, redisUrl });
  console.log(`berth: wrote ${written.join(', ')}
berth: next: systemd-sysusers && systemctl daemon-reload && systemctl enable --now berth-${role}`);
}

main().catch((error: unknown) => {
  console.error(`berth: ${error instanceof Error ? error.message : String(error)}`);
  process.exitCode = 1;
});
