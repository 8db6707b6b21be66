import assert from 'node:assert';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import type { ApiClient } from './api.ts';
import { Daemon, type Environment } from './daemon.ts';
import { createDisk } from './disks.ts';
import { s3UrlOf } from './objects.ts';
import type { Stack } from './stack.ts';
import { waitFor } from './wait.ts';

// Debian's own programs, whatever else of the same name is installed beside them.
const PATH = '/usr/sbin:/usr/bin:/sbin:/bin';

/** Credentials of a tool that speaks S3 (docs/object-api.md). */
export interface Credentials {
  readonly identifier: string;
  readonly token: string;
}

export interface DiskUser extends Credentials {
  readonly s3Url: string;
  readonly disk: string;
}

/** A new disk with its first user. */
export async function newDiskUser(
  stack: Stack,
  api: ApiClient,
  input: Record<string, unknown> = {},
): Promise<DiskUser> {
  const { id: disk, authorizedUsers } = await createDisk(api, input);
  const [user] = authorizedUsers;
  assert(user?.token !== undefined);
  return { s3Url: s3UrlOf(stack), disk, identifier: user.identifier, token: user.token };
}

/** Arguments that have curl sign its requests. */
export const curlSigned = ({ identifier, token }: Credentials): string[] => [
  ...['-sS', '--aws-sigv4', 'aws:amz:us-east-1:s3', '-u', `${identifier}:${token}`],
  ...['-H', 'x-amz-content-sha256: UNSIGNED-PAYLOAD'],
];

export interface Finished {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs third-party programs with a home directory that is removed with the stack. */
export class Tools {
  readonly home: string;
  readonly #environment: Environment;

  private constructor(home: string, environment: Environment) {
    this.home = home;
    this.#environment = { PATH, HOME: home, ...environment };
  }

  /** @param environment besides the path and the home */
  static async in(stack: Stack, environment: Environment = {}): Promise<Tools> {
    const home = join(stack.directory, 'home');
    await mkdir(home, { recursive: true });
    return new Tools(home, environment);
  }

  /** A path in the home, which is also where programs run. */
  path(...names: string[]): string {
    return join(this.home, ...names);
  }

  /** Runs a program to its end. */
  async run(program: string, args: readonly string[]): Promise<Finished> {
    const child = spawn(program, args, {
      cwd: this.home,
      env: this.#environment,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const [[code], stdout, stderr] = await Promise.all([
      once(child, 'close') as Promise<[number | null]>,
      text(child.stdout),
      text(child.stderr),
    ]);
    return { code, stdout, stderr };
  }

  /** Output of a program that must succeed. */
  async output(program: string, ...args: string[]): Promise<string> {
    const { code, stdout, stderr } = await this.run(program, args);
    assert.equal(code, 0, `${program} ${args.join(' ')}: ${stdout}${stderr}`);
    return stdout;
  }

  /** Has a program serve a file system on the directory, in the foreground, until disposed. */
  async serveMount(command: readonly string[], directory: string): Promise<AsyncDisposable> {
    const [program = ''] = command;
    await mkdir(directory, { recursive: true });
    const daemon = new Daemon(program, command, this.#environment, `${directory}.log`);
    const end = async (): Promise<void> => {
      await daemon.stop();
      if (await isMounted(directory)) await this.output('umount', '-l', directory);
    };
    daemon.start();
    try {
      await waitFor(`${program} to mount`, async () => {
        if (!daemon.isRunning) throw new Error(`${program} ended: ${await daemon.readLog()}`);
        return isMounted(directory);
      });
    } catch (error) {
      await end();
      throw error;
    }
    return { [Symbol.asyncDispose]: end };
  }
}

async function isMounted(directory: string): Promise<boolean> {
  const table = await readFile('/proc/self/mountinfo', 'utf8');
  return table.split('\n').some((line) => line.split(' ')[4] === directory);
}
