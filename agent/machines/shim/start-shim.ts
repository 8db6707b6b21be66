import { closeSync } from 'node:fs';
import { Socket } from 'node:net';
import { native } from '../../native/native.ts';
import { startProgram, type StartedProgram } from '../../system/start-program.ts';

const START_MS_MAX = 30_000;
const REPORT_BYTES_MAX = 4096;

async function readReport(pipe: Socket): Promise<string> {
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
export async function startShim(
  program: string,
  args: readonly string[],
  passed: readonly (number | undefined)[],
): Promise<void> {
  const [readFd, writeFd] = native.pipe();
  const pipe = new Socket({ fd: readFd, readable: true, writable: false });
  let shim: StartedProgram;
  try {
    const standard = [undefined, undefined, undefined];
    shim = await startProgram([program, ...args], [...standard, writeFd, ...passed]);
  } catch (error) {
    pipe.destroy();
    throw error;
  } finally {
    closeSync(writeFd);
  }
  const timer = setTimeout(() => shim.kill(), START_MS_MAX);
  try {
    const report = await readReport(pipe);
    if (report === 'ok') return;
    await shim.ended;
    throw new Error(`the machine was not started: ${report === '' ? 'killed' : report}`);
  } finally {
    clearTimeout(timer);
    pipe.destroy();
    shim.leave();
  }
}
