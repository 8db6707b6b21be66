import { closeSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { LIMITS } from '../../../shared/limits.ts';
import { MACHINE_LIMITS } from '../limits.ts';
import { MiB } from '../../../shared/units.ts';
import type { MachineGroups } from '../shim/machine-cgroup.ts';
import { startShim } from '../shim/start-shim.ts';
import { containerShimPath, guestPath, native } from '../../native/native.ts';
import type { MachineSpec } from '../driver.ts';
import { failpoint } from '../../system/failpoint.ts';
import { imageOf } from './sandbox-disk.ts';
import { cgroupOf, firstIdOf, pathsOf, type RuncHost } from './runc-host.ts';
import { sandboxBundle } from './sandbox-bundle.ts';

/**
 * Starts the container of a sandbox, whose disk must be there. Resolves once runc has started its
 * first process. @throws Error with what shim or runc could not do
 */
export async function launchContainer(host: RuncHost, spec: MachineSpec): Promise<void> {
  const { vmId, vcpuCount, memSizeMib, uid } = spec;
  const { run } = pathsOf(host, vmId);
  const groups = await failpoint('make control groups', () =>
    cgroupOf(host, vmId).create({
      memoryBytes: memSizeMib * MiB,
      processes: MACHINE_LIMITS.processesPerSandboxMax,
      cpus: vcpuCount,
    }),
  );
  // The users of the container get to its root through it, and through nothing else.
  await failpoint('make run directory', () => mkdir(run, { mode: 0o711 }));
  const first = firstIdOf(host, uid);
  const mapping = `0 ${first} ${LIMITS.idsPerContainer}\n`;
  const namespace = await native.newUserNamespace(first, mapping);
  try {
    await writeBundle(host, spec, namespace);
    const args = await shimArguments(host, spec, groups);
    await failpoint('start machine', () => startShim(containerShimPath, args, [namespace]));
  } finally {
    closeSync(namespace); // The container has it by now.
  }
}

async function writeBundle(host: RuncHost, spec: MachineSpec, namespace: number): Promise<void> {
  const { vmId, memSizeMib, uid, settings } = spec;
  const { config, devices } = pathsOf(host, vmId);
  const bundle = sandboxBundle({
    hostname: settings.hostname,
    memoryBytes: memSizeMib * MiB,
    guestPath,
    devicesPath: devices,
    cgroupPath: cgroupOf(host, vmId).machinePath,
    namespacePath: `/proc/${process.pid}/fd/${namespace}`,
    mappings: [{ containerID: 0, hostID: firstIdOf(host, uid), size: LIMITS.idsPerContainer }],
    seccomp: host.seccomp,
    hiddenPaths: host.hiddenPaths,
  });
  await writeFile(config, JSON.stringify(bundle));
}

async function shimArguments(
  host: RuncHost,
  { vmId, uid }: MachineSpec,
  groups: MachineGroups,
): Promise<string[]> {
  const { run, disk, runcRoot, runcLog, pid } = pathsOf(host, vmId);
  const { file, imageDir } = await imageOf(disk);
  return [
    ...['--run', run, '--image', imageDir, '--disk', file],
    ...['--loop', String(host.firstLoop), '--owner', String(firstIdOf(host, uid))],
    ...groups.shimFiles.flatMap((procs) => ['--keeper-group', procs]),
    ...['--oom-counter', groups.oomCounter],
    ...['--', 'runc', '--root', runcRoot, '--log', runcLog],
    ...['run', '--detach', '--preserve-fds', '1', '--pid-file', pid, '--bundle', run, vmId],
  ];
}
