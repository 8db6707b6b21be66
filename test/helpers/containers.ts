import { randomBytes, randomUUID } from 'node:crypto';
import { chmod, mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { CAPABILITIES } from '../../agent/machines/oci/bundle.ts';
import { detectCgroups, removeCgroups } from '../../agent/system/cgroup.ts';
import {
  closeTails,
  Container,
  type ContainerHost,
  type ContainerMount,
} from '../../agent/commands/container.ts';
import { UserRanges } from '../../agent/machines/oci/container-users.ts';
import { readHiddenPaths } from '../../agent/machines/oci/hidden-paths.ts';
import { OutputTurns } from '../../agent/commands/output-turns.ts';
import { readSeccomp } from '../../agent/machines/oci/seccomp.ts';
import { run } from '../../agent/system/spawn.ts';
import { temporaryDirectory } from './temporary.ts';
import { MiB } from '../../shared/units.ts';

export interface TestContainers extends AsyncDisposable {
  /** The directory for everything that belongs to the containers. */
  readonly directory: string;
  readonly host: ContainerHost;
}

/** Sets up what containers need of a host, without an agent. */
export async function openContainers(): Promise<TestContainers> {
  const directory = await temporaryDirectory();
  const containersDir = join(directory.path, 'containers');
  await mkdir(containersDir, { mode: 0o711 });
  await chmod(directory.path, 0o711);
  const cgroups = await detectCgroups();
  const cgroupParent = `/berth-test-${randomBytes(4).toString('hex')}/host`;
  return {
    directory: directory.path,
    host: {
      containersDir,
      runcRoot: join(directory.path, 'runc'),
      imageDir: process.env['DEFAULT_IMAGE_DIR'] ?? '',
      mountAliases: [],
      limits: { memoryBytes: 256 * MiB, processes: 64, cpus: 1, scratchBytes: 64 * MiB },
      cgroups,
      cgroupParent,
      seccomp: await readSeccomp('/usr/share/containers/seccomp.json', CAPABILITIES),
      hiddenPaths: await readHiddenPaths(),
      userRanges: new UserRanges(2 ** 31),
      tails: { directory: directory.path, turns: new OutputTurns() },
    },
    async [Symbol.asyncDispose]() {
      await removeCgroups(cgroups, cgroupParent);
      await directory[Symbol.asyncDispose]();
    },
  };
}

export interface CommandOutput {
  readonly exitCode: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs a command in a new container and waits until nothing is left of it. */
export async function runInContainer(
  host: ContainerHost,
  command: string,
  mounts: readonly ContainerMount[] = [],
): Promise<CommandOutput> {
  const container = new Container(host, randomUUID());
  await container.start();
  const { exitCode, stdout, stderr } = await container.run(() => command, mounts);
  await container.gone;
  const [out, err] = await Promise.all([stdout.read(), stderr.read()]);
  await closeTails(stdout, stderr);
  return { exitCode, stdout: out.toString(), stderr: err.toString() };
}

/** A shell command that writes a program of test/fixtures, built here, to the path. */
export async function commandToInstall(name: string, path: string): Promise<string> {
  const source = new URL(`../fixtures/${name}.c`, import.meta.url).pathname;
  await using directory = await temporaryDirectory();
  const program = join(directory.path, name);
  await run('cc', ['-std=gnu11', '-O1', '-Wall', '-Wextra', '-Werror', '-o', program, source]);
  const encoded = (await readFile(program)).toString('base64');
  return `base64 -d > ${path} <<'END'\n${encoded}\nEND\nchmod 755 ${path}\n`;
}
