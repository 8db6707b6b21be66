import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

/** Identifies a process even after its pid was given to a later one. */
export interface ProcessId {
  readonly pid: number;
  readonly startTime: string;
}

/** The random id that the host's kernel drew when it booted. */
export const hostBootId = (): string =>
  readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();

/** @returns undefined when the process is gone or a zombie */
export function identify(pid: number): ProcessId | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The command name stands in parentheses and may itself contain spaces and parentheses.
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    const [state, ticksSinceBoot] = [fields[0], fields[19]];
    if (state === 'Z' || state === 'X' || ticksSinceBoot === undefined) return undefined;
    return { pid, startTime: `${hostBootId()}/${ticksSinceBoot}` };
  } catch {
    return undefined;
  }
}

export function isAlive(id: ProcessId): boolean {
  return identify(id.pid)?.startTime === id.startTime;
}

/** Asks the process to end, and kills it and its process group after `withinMs`. */
export async function endProcess(
  id: ProcessId,
  { withinMs, signal = 'SIGTERM' }: { withinMs: number; signal?: NodeJS.Signals },
): Promise<void> {
  if (!isAlive(id)) return;
  sendSignal(id.pid, signal);
  if (await waitForEnd(id, withinMs)) return;
  killGroup(id);
  await waitForEnd(id, 5000);
}

export function killGroup(id: ProcessId): void {
  if (!isAlive(id)) return;
  sendSignal(-id.pid, 'SIGKILL');
  // A supervisor in the foreground may not be the leader of its process group.
  sendSignal(id.pid, 'SIGKILL');
}

/** @returns whether the process ended in time */
async function waitForEnd(id: ProcessId, withinMs: number): Promise<boolean> {
  const deadline = performance.now() + withinMs;
  while (isAlive(id)) {
    if (performance.now() > deadline) return false;
    await sleep(50);
  }
  return true;
}

function sendSignal(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch (error) {
    // ESRCH: it has ended in the meantime.
    if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error;
  }
}
