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
import type { Stack } from '../test/helpers/stack.ts';
import { GiB } from '../shared/units.ts';

export interface BareRunc extends AsyncDisposable {
  run(): Promise<void>;
  /** Runs it to its end. @returns milliseconds until it put something out */
  firstOutputMs(): Promise<number>;
}

async function ended(runc: ChildProcess): Promise<void> {
  const [code] = (await once(runc, 'exit')) as [number];
  if (code !== 0) throw new Error(`runc ended with ${code}`);
}

/**
 * The baseline of an exec and of a container: `runc run` with the agent's own bundle, except for
 * the user namespace, with the command as its first process. Its root is mounted beforehand.
 * @param options.mountPath where a disk is mounted already
 */
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
    async [Symbol.asyncDispose]() {
      await removeScratch(directory);
      await rm(runcRoot, { recursive: true, force: true });
    },
  };
}
