import { spawn } from 'node:child_process';
import { once } from 'node:events';
import type { Readable } from 'node:stream';
import { started } from '../system/started.ts';

const START_MS_MAX = 30_000;
const REPORT_BYTES_MAX = 4096;

async function readReport(pipe: Readable): Promise<string> {
  let report = '';
  for await (const chunk of pipe.setEncoding('utf8')) {
    report += String(chunk);
    if (report.length > REPORT_BYTES_MAX) break;
  }
  return report.trim();
}

/**
 * Starts a machine with the shim that stays with it when this process ends. Resolves once the shim
 * reports that the machine was started.
 * @param passed what it has from descriptor 4 on: descriptors of this process, or nothing
 * @throws Error with what the shim could not do; nothing of it runs then
 */
export async function startKeeper(
  program: string,
  args: readonly string[],
  passed: readonly ('ignore' | number)[],
): Promise<void> {
  const shim = await started(
    spawn(program, args, {
      stdio: ['ignore', 'ignore', 'ignore', 'pipe', ...passed],
      detached: true,
      env: {},
    }),
  );
  const exited = once(shim, 'exit');
  exited.catch(() => undefined);
  const pipe = shim.stdio[3] as Readable;
  const timer = setTimeout(() => shim.kill('SIGKILL'), START_MS_MAX);
  try {
    const report = await readReport(pipe);
    if (report !== 'ok') {
      await exited;
      throw new Error(`the machine was not started: ${report === '' ? 'killed' : report}`);
    }
  } finally {
    clearTimeout(timer);
    pipe.destroy();
    shim.unref();
  }
}
