import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import type { Redis } from 'ioredis';
import { MiB } from '../shared/units.ts';

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

/** Figures that Redis reports. */
export interface RedisFigures {
  readonly usedMiB: number;
  readonly commands: number;
  /** How often it read from a connection: commands that arrive together are read together. */
  readonly reads: number;
  readonly clients: number;
}

export async function redisFigures(redis: Redis): Promise<RedisFigures> {
  const text = await redis.info();
  const field = (name: string): number =>
    Number(new RegExp(`^${name}:(\\d+)`, 'mu').exec(text)?.[1] ?? Number.NaN);
  return {
    usedMiB: field('used_memory') / MiB,
    commands: field('total_commands_processed'),
    reads: field('total_reads_processed'),
    clients: field('connected_clients'),
  };
}

/** Memory of all keys together, without the buffers of connections, which come and go. */
export async function redisKeysMiB(redis: Redis): Promise<number> {
  let bytes = 0;
  for await (const keys of redis.scanStream({ count: 1000 })) {
    const sizes = await Promise.all((keys as string[]).map((key) => redis.memory('USAGE', key)));
    for (const size of sizes) bytes += size ?? 0;
  }
  return bytes / MiB;
}
