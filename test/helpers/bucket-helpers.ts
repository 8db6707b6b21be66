import { readdir, readFile } from 'node:fs/promises';

/** The processes of an attached disk's helper: three, unless some were just killed. */
export async function helpersOf(diskId: string): Promise<number[]> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/u.test(name)).map(Number);
  const lines = await Promise.all(
    pids.map((pid) => readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '')),
  );
  return pids.filter((_, i) => lines[i]?.includes(`/${diskId}.sock`));
}
