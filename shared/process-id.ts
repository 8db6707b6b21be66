import { readFileSync } from 'node:fs';

/** Tells a process apart from a later one that was given the same pid. */
export interface ProcessId {
  readonly pid: number;
  readonly startTime: string;
}

/** Drawn by the kernel when the machine started. */
export const hostBootId = (): string =>
  readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();

/** Undefined when the process is gone or only waits for its parent to notice its end. */
export function identify(pid: number): ProcessId | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The command's name in parentheses may itself contain spaces and parentheses.
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
  // A supervisor in the foreground need not lead the group that it is in.
  sendSignal(id.pid, 'SIGKILL');
}

/** Whether the process ended in time. */
async function waitForEnd(id: ProcessId, withinMs: number): Promise<boolean> {
  const deadline = performance.now() + withinMs;
  while (isAlive(id)) {
    if (performance.now() > deadline) return false;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return true;
}

function sendSignal(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch (error) {
    // It ended since it was last looked at.
    if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error;
  }
}
