import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import type { HostsAnswer, HostsRequest } from './region-hosts-main.ts';

const program = new URL('region-hosts-main.ts', import.meta.url).pathname;

type MadeSandboxes = Extract<HostsAnswer, { made: unknown }>['made'];

/** A process with many simulated hosts; ended when it is disposed of. */
export class HostProcess implements AsyncDisposable {
  readonly #child: ChildProcess;

  constructor() {
    this.#child = fork(program, [], {
      env: { PATH: process.env['PATH'] ?? '', UV_THREADPOOL_SIZE: '32' },
    });
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  /** Asks for one thing; nothing else may be asked for meanwhile. */
  async ask(request: HostsRequest): Promise<MadeSandboxes> {
    const ended = new AbortController();
    const exited = once(this.#child, 'exit', { signal: ended.signal }).then(
      () => ({ error: 'the process of the hosts has ended' }),
      () => ({ error: '' }),
    );
    this.#child.send(request);
    const answered = once(this.#child, 'message', { signal: ended.signal }).then(
      ([answer]) => answer as HostsAnswer,
      () => ({ error: '' }),
    );
    const answer: HostsAnswer = await Promise.race([answered, exited]);
    ended.abort();
    if ('error' in answer) throw new Error(answer.error);
    return answer.made;
  }

  /** Nothing of its hosts is anywhere but in memory, in the directory and in their journals. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const exited = once(this.#child, 'exit');
    this.#child.kill('SIGKILL');
    await exited;
  }
}
