import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Environment } from './daemon.ts';

const SECRETS = ['CLUSTER_SECRET', 'ENCRYPTION_KEY', 'SIGNING_KEYS', 'REDIS_PASSWORD'] as const;

/** By the name of its setting, each secret of a cluster. */
function secretsOf(settings: Readonly<Environment>): [name: string, secret: string][] {
  const { REDIS_URL = '' } = settings;
  const password = URL.canParse(REDIS_URL) ? new URL(REDIS_URL).password : '';
  const rings = SECRETS.flatMap((name) =>
    (settings[name] ?? '').split(',').map((secret): [string, string] => [name, secret]),
  );
  const all: [string, string][] = [...rings, ['REDIS_URL', password]];
  return all.filter(([, secret]) => secret !== '');
}

const bytesOf = (path: string): Promise<Buffer> => readFile(path).catch(() => Buffer.alloc(0));

/** Control, agents and Redis, which may have the secrets. */
const PARTS = /\b(?:control|agent)\/main\.ts\0|redis-s/u;

const pids = async (): Promise<string[]> =>
  (await readdir('/proc')).filter((name) => /^\d+$/u.test(name));

/**
 * Lists the processes of this machine that have one of a cluster's secrets in their environment or
 * command line, but for control, agents and Redis. The secrets themselves are not shown.
 */
export async function findSecrets(settings: Readonly<Environment>): Promise<string[]> {
  const secrets = secretsOf(settings);
  const found: string[] = [];
  for (const pid of await pids()) {
    const command = await bytesOf(join('/proc', pid, 'cmdline'));
    if (PARTS.test(command.toString())) continue;
    const environment = await bytesOf(join('/proc', pid, 'environ'));
    for (const [name, secret] of secrets) {
      const places = { environment, 'command line': command };
      for (const [place, bytes] of Object.entries(places)) {
        if (bytes.includes(secret)) found.push(`${name} in the ${place} of ${await nameOf(pid)}`);
      }
    }
  }
  return found;
}

const nameOf = async (pid: string): Promise<string> =>
  (await bytesOf(join('/proc', pid, 'comm'))).toString().trim();

/** The names of the programs that run in a control group and below it. */
export async function programsIn(group: string): Promise<ReadonlySet<string>> {
  const names = (await pids()).map(async (pid) => {
    const groups = (await bytesOf(join('/proc', pid, 'cgroup'))).toString();
    return groups.includes(`${group}/`) ? nameOf(pid) : '';
  });
  return new Set(await Promise.all(names));
}
