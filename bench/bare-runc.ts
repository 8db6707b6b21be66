import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { paths } from '../agent/system/paths.ts';
import { CAPABILITIES, execBundle } from '../agent/containers/bundle.ts';
import { detectCgroups } from '../agent/system/cgroup.ts';
import { readHiddenPaths } from '../agent/containers/hidden-paths.ts';
import { mountScratch, removeScratch, scratchPaths } from '../agent/containers/scratch.ts';
import { readSeccomp } from '../agent/containers/seccomp.ts';
import type { Stack } from '../test/helpers/stack.ts';
import { GiB } from '../shared/units.ts';

export interface BareRunc {
  run(): Promise<void>;
  dispose(): Promise<void>;
}

/**
 * The baseline of an exec: `runc run` with the agent's own bundle, except for the user namespace, on
 * a disk that is already mounted, with the command as its first process. Its root is mounted
 * beforehand.
 */
export async function prepareBareRunc(
  stack: Stack,
  diskId: string,
  name: string,
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
    mountPath: join(paths.mount(stack.environment['AGENT_DATA_DIR'] ?? '', diskId), 'contents'),
    cgroupPath: `${stack.environment['AGENT_CGROUP']}/${name}`,
    controllers,
    limits: { memoryBytes: GiB, processes: 512, cpus: 2, scratchBytes: GiB / 2 },
    seccomp: await readSeccomp('/usr/share/containers/seccomp.json', CAPABILITIES),
    hiddenPaths: await readHiddenPaths(),
    users: undefined,
  });
  const args = ['bash', '-c', 'true'];
  const process = { ...(bundle['process'] as object), args, cwd: '/mnt/service' };
  await writeFile(config, JSON.stringify({ ...bundle, process }));
  return {
    async run() {
      const runc = [
        '--root',
        join(stack.directory, `${name}-runc`),
        'run',
        '--bundle',
        directory,
        name,
      ];
      const [code] = (await once(spawn('runc', runc, { stdio: 'ignore' }), 'exit')) as [number];
      if (code !== 0) throw new Error(`runc ended with ${code}`);
    },
    async dispose() {
      await removeScratch(directory);
      await rm(join(stack.directory, `${name}-runc`), { recursive: true });
    },
  };
}
