import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { started } from './started.ts';

const OUTPUT_BYTES_MAX = 64 * 1024;

/** An external program that ended with an error; the message carries the end of what it printed. */
export class ProgramError extends Error {
  constructor(program: string, ending: string, output: string) {
    super(`${program} ended with ${ending}: ${output.trim().slice(-2000)}`);
    this.name = 'ProgramError';
  }
}

/**
 * Runs a program to its end and returns what it printed. For short programs of the host (mke2fs,
 * mount …): bounded in time and in output.
 * @throws ProgramError when it fails, is killed, or takes too long
 */
export async function run(
  program: string,
  args: readonly string[],
  options: { timeoutMs?: number; input?: string } = {},
): Promise<string> {
  const child = await started(
    spawn(program, args, {
      stdio: ['pipe', 'pipe', 'pipe'],
      timeout: options.timeoutMs ?? 30_000,
      killSignal: 'SIGKILL',
    }),
  );
  let output = '';
  const collect = (chunk: Buffer): void => {
    if (output.length < OUTPUT_BYTES_MAX) output += chunk.toString('utf8');
  };
  child.stdout.on('data', collect);
  child.stderr.on('data', collect);
  child.stdin.on('error', () => undefined); // A program may end without reading its input.
  child.stdin.end(options.input ?? '');
  const [code, signal] = (await once(child, 'close')) as [number | null, string | null];
  if (code !== 0) throw new ProgramError(program, String(code ?? signal), output);
  return output;
}
