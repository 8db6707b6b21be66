import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { CAPABILITIES, execBundle } from '../agent/machines/oci/bundle.ts';
import { detectCgroups } from '../agent/system/cgroup.ts';
import { readHiddenPaths } from '../agent/machines/oci/hidden-paths.ts';
import { mountScratch, removeScratch, scratchPaths } from '../agent/commands/scratch.ts';
import { readSeccomp } from '../agent/machines/oci/seccomp.ts';
import { diskContents } from '../test/helpers/host.ts';
import type { Stack } from '../test/helpers/stack.ts';
import { GiB } from '../shared/units.ts';

export interface BareRunc {
  run(): Promise<void>;
  /** Runs it to its end. @returns milliseconds until it put something out */
  firstOutputMs(): Promise<number>;
  dispose(): Promise<void>;
}

async function ended(runc: ChildProcess): Promise<void> {
  const [code] = (await once(runc, 'exit')) as [number];
  if (code !== 0) throw new Error(`runc ended with ${code}`);
}

/**
 * The baseline of an exec: `runc run` with the agent's own bundle, except for the user namespace,
 * on a disk that is already mounted, with the command as its first process. Its root is mounted
 * beforehand.
 */
export async function prepareBareRunc(
  stack: Stack,
  diskId: string,
  name: string,
): Promise<BareRunc> {
  return prepareRunc(stack, { name, mountPath: contentsOf(stack, diskId), command: 'true' });
}

/** Where the stack's agent mounts what callers see of a disk. */
export const contentsOf = diskContents;

/** The same with any command and any directory where a disk would be mounted. */
export async function prepareRunc(
  stack: Stack,
  {
    name,
    mountPath,
    command,
  }: { readonly name: string; readonly mountPath: string; readonly command: string },
): Promise<BareRunc> {
  const directory = join(stack.directory, name);
  const imageDir = stack.environment['DEFAULT_IMAGE_DIR'] ?? '';
  const scratch = { imageDir, mountAliases: [], sizeBytes: GiB / 2, users: undefined };
  await mountScratch(directory, scratch);
  const { root, devices, config } = scratchPaths(directory);
  const { controllers } = await detectCgroups();
  const bundle = execBundle({
    rootPath: root,
    devicesPath: devices,
    mountPath,
    cgroupPath: `${stack.environment['AGENT_CGROUP']}/${name}`,
    controllers,
    limits: { memoryBytes: GiB, processes: 512, cpus: 2, scratchBytes: GiB / 2 },
    seccomp: await readSeccomp('/usr/share/containers/seccomp.json', CAPABILITIES),
    hiddenPaths: await readHiddenPaths(),
    users: undefined,
  });
  const args = ['bash', '-c', command];
  const process = { ...(bundle['process'] as object), args, cwd: '/mnt/service' };
  await writeFile(config, JSON.stringify({ ...bundle, process }));
  const runcRoot = join(stack.directory, `${name}-runc`);
  const start = (output: 'ignore' | 'pipe'): ChildProcess =>
    spawn('runc', ['--root', runcRoot, 'run', '--bundle', directory, name], {
      stdio: ['ignore', output, 'ignore'],
    });
  return {
    run: () => ended(start('ignore')),
    async firstOutputMs() {
      const begunAt = performance.now();
      const runc = start('pipe');
      const over = ended(runc);
      await once(runc.stdout as Readable, 'data');
      const ms = performance.now() - begunAt;
      await over;
      return ms;
    },
    async dispose() {
      await removeScratch(directory);
      await rm(runcRoot, { recursive: true, force: true });
    },
  };
}
