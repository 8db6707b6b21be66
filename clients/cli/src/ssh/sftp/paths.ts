import { posix } from 'node:path';
import type { Sandbox } from '@berth/sdk';
import type { Attributes } from 'ssh2';
import { commandLine } from '../../quote.ts';
import { Refused, unsupported } from './failure.ts';

/** Permission bits that new files lose, as after a login. */
const UMASK = 0o022;
const PERMISSIONS = 0o7777;

/** Bits for a new file, as the files API takes them. */
export const modeOfNew = ({ mode }: Partial<Attributes>): { mode: string } | object =>
  mode === undefined ? {} : { mode: (mode & PERMISSIONS & ~UMASK).toString(8) };

/** Operations on paths that the files API lacks, done by commands in the sandbox. */
export class SandboxPaths {
  readonly #sandbox: Sandbox;
  #home: Promise<string> | undefined;

  constructor(sandbox: Sandbox) {
    this.#sandbox = sandbox;
  }

  /** A path as the sandbox understands it: those of clients begin in the home directory. */
  async absolute(path: string): Promise<string> {
    if (path.startsWith('/')) return path;
    const home = await (this.#home ??= this.#run('cd 2>/dev/null; pwd'));
    return path === '' || path === '.' ? home : posix.join(home, '.').concat('/', path);
  }

  /** The same without `.` and `..`. */
  async real(path: string): Promise<string> {
    const real = posix.normalize(await this.absolute(path));
    return real.length > 1 ? real.replace(/\/$/u, '') : real;
  }

  async link(target: string, path: string): Promise<void> {
    await this.#run(commandLine(['ln', '-s', '--', target, path]));
  }

  /** Changes what is given. */
  async change(path: string, given: Partial<Attributes>): Promise<void> {
    if (given.size !== undefined) throw unsupported(`${path} cannot be cut or made longer`);
    const { mode, uid, gid, mtime } = given;
    const changes: string[][] = [];
    if (uid !== undefined && gid !== undefined) changes.push(['chown', `${uid}:${gid}`, path]);
    if (mode !== undefined) changes.push(['chmod', (mode & PERMISSIONS).toString(8), path]);
    if (mtime !== undefined) changes.push(['touch', '-d', `@${mtime}`, path]);
    if (changes.length > 0) await this.#run(changes.map(commandLine).join(' && '));
  }

  async #run(command: string): Promise<string> {
    const { exitCode, stdout, stderr } = await this.#sandbox.run(command);
    if (exitCode === 0) return stdout.replace(/\n$/u, '');
    throw new Refused(stderr.trim() || `${command} ended with ${exitCode}`);
  }
}
