import { spawn } from 'node:child_process';
import { once } from 'node:events';

/** A process that is stopped until this is disposed. */
export type Silence = AsyncDisposable;

/**
 * Stops a process without ending it, as a machine that is frozen. It continues when the result is
 * disposed, and also when the test itself is killed: another process sees its end.
 */
export function silence(pid: number): Silence {
  // Reads until the pipe is closed, by this process or by the kernel.
  const watcher = spawn('sh', ['-c', 'read -r _; kill -CONT "$0"', String(pid)], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  });
  process.kill(pid, 'SIGSTOP');
  const ended = once(watcher, 'exit');
  return {
    async [Symbol.asyncDispose]() {
      watcher.stdin.end();
      await ended;
    },
  };
}
