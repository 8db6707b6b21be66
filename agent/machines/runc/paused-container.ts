import { existsSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { toError } from '../../../shared/errors.ts';
import { MACHINE_LIMITS } from '../limits.ts';
import { hostBootId, isAlive } from '../../../shared/process-id.ts';
import { readIdentity } from '../shim/shim-files.ts';
import { untilRunning } from '../shim/until-running.ts';
import type { MachineSpec } from '../driver.ts';
import { failpoint } from '../../system/failpoint.ts';
import { run } from '../../system/spawn.ts';
import { writeDurably } from '../../system/write-durably.ts';
import { configureContainer } from './configure-container.ts';
import { watchContainer } from './recover-container.ts';
import { cgroupOf, pathsOf, type RuncHost } from './runc-host.ts';
import type { RuncMachine } from './runc-machine.ts';

/*
 * A paused container stands still in memory, by the freezer of its control group. That it is to
 * stay so is marked by a file: a container that stands still without one was being paused or forked
 * when its agent ended, and goes on.
 */

const MARK = 'paused.json';
const FREEZE_MS_MAX = 10_000;
/** Less than its sandbox would be ended for (copy-gate.ts). */
const PAUSE_MS_MAX = MACHINE_LIMITS.sandboxCopyMsBase;

/**
 * Stops every process of a container where it is, and writes what it has of its disk. When that
 * fails, the container runs on.
 * @throws MachineFault, ProgramTimeoutError when both take longer than `msMax`
 */
export async function standStill(machine: RuncMachine, msMax: number): Promise<void> {
  const until = performance.now() + msMax;
  await machine.cgroup.freeze(Math.min(FREEZE_MS_MAX, msMax));
  try {
    const timeoutMs = Math.max(1, until - performance.now());
    // By the root of its first process: the host has the disk mounted nowhere.
    await run('sync', ['--file-system', `/proc/${machine.pid}/root`], { timeoutMs });
  } catch (error) {
    await machine.cgroup.thaw();
    throw error;
  }
}

/** Whether there is a container that stands still and waits for its resume. */
export async function isPaused(host: RuncHost, vmId: string): Promise<boolean> {
  const { run: runDir } = pathsOf(host, vmId);
  if (!existsSync(join(runDir, MARK))) return false;
  const identity = await readIdentity(runDir);
  return identity !== undefined && isAlive(identity.machine) && isAlive(identity.keeper);
}

/** When it cannot be paused, it runs on. */
export async function pauseContainer(
  host: RuncHost,
  vmId: string,
  machine: RuncMachine,
): Promise<void> {
  const { run: runDir } = pathsOf(host, vmId);
  await failpoint('stop processes', () => standStill(machine, PAUSE_MS_MAX));
  try {
    await failpoint('mark paused', () => writeDurably(runDir, MARK, '{}'));
  } catch (error) {
    await machine.cgroup.thaw();
    throw error;
  }
  machine.detach();
}

/**
 * Has a paused container go on. It counts as paused until its guest has answered, so that a resume
 * that failed, or whose agent ended, can be done again.
 */
export async function resumeContainer(
  host: RuncHost,
  spec: MachineSpec,
  signal: AbortSignal,
): Promise<RuncMachine> {
  const { vmId } = spec;
  const { run: runDir } = pathsOf(host, vmId);
  if (!(await isPaused(host, vmId))) throw new Error(await whyNot(runDir));
  const machine = await watchContainer(host, vmId);
  try {
    machine.origin = { kind: 'checkpoint', beganAt: performance.now() };
    await failpoint('continue processes', () => machine.cgroup.thaw());
    await untilRunning(host, machine, signal, (limit) =>
      configureContainer(host, machine, spec, limit),
    );
    await failpoint('use up checkpoint', () => rm(join(runDir, MARK), { force: true }));
    return machine;
  } catch (error) {
    machine.detach();
    await cgroupOf(host, vmId)
      .freeze(FREEZE_MS_MAX)
      .catch((err: unknown) => host.log.warn({ vmId, err: toError(err) }, 'machine:notStopped'));
    throw error;
  }
}

/** @returns whether there was a container that counted as paused; it does not any more */
export async function discardPaused(host: RuncHost, vmId: string): Promise<boolean> {
  const mark = join(pathsOf(host, vmId).run, MARK);
  if (!existsSync(mark)) return false;
  await failpoint('discard checkpoint', () => rm(mark, { force: true }));
  return true;
}

async function whyNot(runDir: string): Promise<string> {
  const identity = await readIdentity(runDir);
  const isOfNow = identity?.hostBootId === hostBootId();
  return existsSync(join(runDir, MARK)) && !isOfNow
    ? 'the host was restarted while it was paused, so its memory is lost; its disk is kept'
    : 'the container that was paused is gone, and with it its memory; its disk is kept';
}
