/* Whether guests boot here, and how fast they will be. */
import { access, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { probe, readChoice } from '../../agent/machines/qemu/process/accelerator.ts';
import { detectCgroups, removeCgroups } from '../../agent/system/cgroup.ts';
import type { AcceleratorChoice } from '../../shared/schemas/host.ts';
import type { Env } from '../env-file.ts';
import { failed, type Finding, ok, warning } from './finding.ts';

const CHECK = 'kvm';
/** Outside the ids that agents give to their machines. */
const PROBE_UID = 600_099_990;

/**
 * Boots a guest under KVM in a place of its own: that /dev/kvm exists does not prove that guests
 * boot.
 */
async function bootUnderKvm(guestDir: string, rootDisk: string): Promise<AcceleratorChoice> {
  const directory = await mkdtemp(join(tmpdir(), 'berth-doctor-'));
  const cgroups = await detectCgroups();
  const cgroupParent = `/berth-doctor/${process.pid}`;
  const host = { guestDir, rootDisk, cgroups, cgroupParent };
  const log = pino({ level: 'silent' });
  try {
    return await probe({ host, directory, uid: PROBE_UID, log });
  } finally {
    await removeCgroups(cgroups, cgroupParent);
    await rm(directory, { recursive: true, force: true });
  }
}

/** The choice of this host's agent, which holds until the host boots again. */
async function choiceOfAgent({ AGENT_DATA_DIR: dataDir }: Env): Promise<Finding[]> {
  const choice = dataDir === undefined ? undefined : await readChoice(dataDir);
  if (choice === undefined) return [];
  const { accelerator, reason } = choice;
  const message = `the agent has chosen ${accelerator} (${reason})`;
  if (accelerator === 'kvm') return [ok(CHECK, message)];
  const next = 'its log says why (accelerator:kvmUnusable); it tries again after the next boot';
  return [warning(CHECK, message, next)];
}

/** Whether virtual machines run here, and whether they run at the processor's speed. */
export async function checkKvm(config: Env): Promise<Finding[]> {
  if (config['SANDBOX_RUNTIME'] === 'container') {
    return [ok(CHECK, 'sandboxes are containers here (SANDBOX_RUNTIME): nothing to boot')];
  }
  const { GUEST_DIR: guestDir, DEFAULT_ROOT_DISK: rootDisk } = config;
  if (guestDir === undefined || rootDisk === undefined) {
    return [failed(CHECK, 'there is no guest to boot', 'run ./scripts/setup')];
  }
  const slow = 'sandboxes are emulated, and many times slower';
  const hasDevice = await access('/dev/kvm').then(
    () => true,
    () => false,
  );
  if (!hasDevice) {
    const next =
      'turn on virtualization in the firmware, or nested virtualization for this machine';
    return [warning(CHECK, `there is no /dev/kvm: ${slow}`, next)];
  }
  const chosen = await choiceOfAgent(config);
  const { accelerator, reason } = await bootUnderKvm(guestDir, rootDisk);
  if (accelerator === 'kvm') return [ok(CHECK, 'a guest boots under KVM'), ...chosen];
  const how = reason === 'timed_out' ? 'in time' : 'at all';
  const message = `/dev/kvm is there, but a guest does not boot under it ${how}: ${slow}`;
  const next = 'use a host whose KVM works, or SANDBOX_RUNTIME=container';
  return [warning(CHECK, message, next), ...chosen];
}
