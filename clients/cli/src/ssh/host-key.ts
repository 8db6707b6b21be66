import { mkdir, readFile, rename, writeFile, link, rm } from 'node:fs/promises';
import { join } from 'node:path';
import ssh2 from 'ssh2';

/**
 * Clients know every sandbox under this name: the server they speak to is this program, on this
 * computer.
 */
export const HOST_PATTERN = '*.berth';

const isMissing = (error: unknown): boolean => (error as NodeJS.ErrnoException).code === 'ENOENT';
const isThere = (error: unknown): boolean => (error as NodeJS.ErrnoException).code === 'EEXIST';

/** Where the file is that `UserKnownHostsFile` names. */
export const knownHostsPath = (directory: string): string => join(directory, 'known_hosts');

/** When several begin at once, one makes the key, and the others take it. */
async function writeOnce(path: string, text: string): Promise<void> {
  const temporary = `${path}.${process.pid}`;
  await writeFile(temporary, text, { mode: 0o600, flush: true });
  try {
    await link(temporary, path);
  } catch (error) {
    if (!isThere(error)) throw error;
  } finally {
    await rm(temporary, { force: true });
  }
}

async function makeKey(path: string): Promise<string> {
  const { private: key } = ssh2.utils.generateKeyPairSync('ed25519');
  await writeOnce(path, key);
  return readFile(path, 'utf8');
}

/** The line of known_hosts for the public half of a key. */
function knownHost(key: string): string {
  const parsed = ssh2.utils.parseKey(key);
  if (parsed instanceof Error) throw parsed;
  const [one] = [parsed].flat();
  if (one === undefined) throw new Error('there is no key');
  return `${HOST_PATTERN} ${one.type} ${one.getPublicSSH().toString('base64')}\n`;
}

/**
 * The key by which SSH clients of this user know the server that `berth sandbox ssh-proxy` is. Made
 * when it is first asked for.
 * @param directory of this user alone
 * @returns private key
 */
export async function hostKey(directory: string): Promise<string> {
  await mkdir(directory, { recursive: true, mode: 0o700 });
  const path = join(directory, 'host_key');
  const key = await readFile(path, 'utf8').catch((error: unknown) => {
    if (isMissing(error)) return makeKey(path);
    throw error;
  });
  const known = knownHostsPath(directory);
  const line = knownHost(key);
  const present = await readFile(known, 'utf8').catch(() => '');
  if (present !== line) {
    await writeFile(`${known}.${process.pid}`, line);
    await rename(`${known}.${process.pid}`, known);
  }
  return key;
}
