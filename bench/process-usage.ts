import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { promisify } from 'node:util';

/** The kernel counts processor time in these (`getconf CLK_TCK`). */
const ticksPerSecond = promisify(execFile)('getconf', ['CLK_TCK']).then(({ stdout }) =>
  Number(stdout),
);

/** Processor time that a process has taken so far, in milliseconds. */
export async function processorMs(pid: number): Promise<number> {
  const text = await readFile(`/proc/${pid}/stat`, 'utf8');
  // The name in brackets may have spaces; the times are the 14th and 15th field.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  return ((Number(fields[11]) + Number(fields[12])) * 1000) / (await ticksPerSecond);
}

/** Processor time that the whole machine has worked so far, in milliseconds. */
export async function machineBusyMs(): Promise<number> {
  const [line = ''] = (await readFile('/proc/stat', 'utf8')).split('\n');
  // After the name: user, nice, system, idle, iowait, irq, softirq, steal.
  const [user, nice, system, , , irq, softirq] = line.split(/\s+/u).slice(1).map(Number);
  const ticks = [user, nice, system, irq, softirq].reduce((sum = 0, each = 0) => sum + each, 0);
  return ((ticks ?? 0) * 1000) / (await ticksPerSecond);
}

export async function residentMiB(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  return Number(/^VmRSS:\s+(\d+) kB$/mu.exec(status)?.[1]) / 1024;
}
