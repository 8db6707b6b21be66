import type { CallOptions, CreatingCallOptions, Http } from './http.ts';
import type { ExecInSandbox, SandboxExec } from './types.ts';
import { poll } from './waiting.ts';

const READ = { retry: 'repeatable' } as const;

/**
 * Commands in a sandbox whose records the API keeps, with the end of their output. For input, all
 * output, or output as it comes, use `sandbox.start`.
 */
export class SandboxExecs {
  readonly #http: Http;
  readonly #sid: string;

  /** @internal */
  constructor(http: Http, sandboxId: string) {
    this.#http = http;
    this.#sid = sandboxId;
  }

  /** Begins a command; it goes on whatever becomes of this client. */
  async begin(exec: ExecInSandbox, options: CreatingCallOptions = {}): Promise<SandboxExec> {
    const params = { path: { sid: this.#sid } };
    const { data } = await this.#http.call({ retry: 'keyed' }, options, (client, init) =>
      client.POST('/api/sandboxes/{sid}/execs', { ...init, params, body: exec }),
    );
    return data;
  }

  /** Waits for the end of a command. @param options `timeoutMs`: default 24 hours */
  async ended(execId: string, options: CallOptions = {}): Promise<SandboxExec> {
    const timeoutMs = options.timeoutMs ?? 86_400_000;
    return poll({ ...options, timeoutMs }, async (call) => {
      const exec = await this.get(execId, call);
      return exec.status === 'running' ? undefined : exec;
    });
  }

  /** With its output so far. @throws NotFoundError */
  async get(execId: string, options: CallOptions = {}): Promise<SandboxExec> {
    const params = { path: { sid: this.#sid, eid: execId } };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.GET('/api/sandboxes/{sid}/execs/{eid}', { ...init, params }),
    );
    return data;
  }

  /** The newest 100, in the order of their execution, without output. */
  async list(options: CallOptions = {}): Promise<SandboxExec[]> {
    const params = { path: { sid: this.#sid } };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.GET('/api/sandboxes/{sid}/execs', { ...init, params }),
    );
    return data.execs;
  }

  /** Kills it, unless it has ended. */
  async cancel(execId: string, options: CallOptions = {}): Promise<SandboxExec> {
    const params = { path: { sid: this.#sid, eid: execId } };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.POST('/api/sandboxes/{sid}/execs/{eid}/cancel', { ...init, params }),
    );
    return data;
  }
}
