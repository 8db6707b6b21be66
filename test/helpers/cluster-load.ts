import assert from 'node:assert';
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Berth } from '@berth/sdk';
import type { ApiClient } from './api.ts';
import { newName } from './disks.ts';
import { ObjectClient } from './objects.ts';
import { createSandbox, sandboxPath } from './sandboxes.ts';

const REFUSED = 503;
const PAUSE_MS = 50;
const INPUT_EVERY_MS = 250;

interface Answer {
  readonly status: number;
  readonly retryAfter: string | null;
  readonly text: string;
}

async function answerOf(sending: Promise<Response>): Promise<Answer> {
  const response = await sending;
  const { status, headers } = response;
  return { status, retryAfter: headers.get('retry-after'), text: await response.text() };
}

/** Results that callers of a cluster have seen. */
interface LoadReport {
  /** How often each kind of call was answered as it should be. */
  readonly done: Readonly<Record<string, number>>;
  /** 503 with `Retry-After`, by kind of call and code: the caller came again. */
  readonly repeated: Readonly<Record<string, number>>;
  /** Everything else: connections that broke, other statuses, wrong content. */
  readonly failures: readonly string[];
}

/**
 * Callers that use a cluster as different clients do, each in turn as soon as it is answered. A
 * call that is refused with 503 and `Retry-After` is made again, as the documentation asks of
 * clients.
 */
export class ClusterLoad {
  readonly #api: ApiClient;
  readonly #ending = new AbortController();
  readonly #done: Record<string, number> = {};
  readonly #repeated: Record<string, number> = {};
  readonly #failures: string[] = [];
  readonly #callers: Promise<void>[] = [];

  constructor(api: ApiClient) {
    this.#api = api;
  }

  /** Begins a caller that takes one turn after the other until the load ends. */
  #call(kind: string, turn: (n: number) => Promise<void>, pauseMs = PAUSE_MS): void {
    const callInTurn = async (): Promise<void> => {
      for (let n = 1; !this.#ending.signal.aborted; n += 1) {
        try {
          await turn(n);
          this.#done[kind] = (this.#done[kind] ?? 0) + 1;
        } catch (error) {
          this.#failures.push(`${new Date().toISOString()} ${kind}: ${describe(error)}`);
        }
        await sleep(pauseMs);
      }
    };
    this.#callers.push(callInTurn());
  }

  /** Makes a request until it is not refused for now. @throws Error when it failed */
  async #request(kind: string, send: () => Promise<Response>): Promise<string> {
    for (;;) {
      const { status, retryAfter, text } = await answerOf(send());
      if (status >= 200 && status < 300) return text;
      if (status !== REFUSED || retryAfter === null) throw new Error(`${kind}: ${status} ${text}`);
      const code = /"code":"(\w+)"|<Code>(\w+)/u.exec(text);
      const name = `${kind} ${code?.[1] ?? code?.[2]}`;
      this.#repeated[name] = (this.#repeated[name] ?? 0) + 1;
      await sleep(Number(retryAfter) * 1000);
    }
  }

  async #json<T>(kind: string, method: string, path: string, body?: object): Promise<T> {
    const { baseUrl, key } = this.#api;
    const text = await this.#request(kind, () =>
      fetch(`${baseUrl}${path}`, {
        method,
        headers: { authorization: `Bearer ${key}` },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      }),
    );
    return (JSON.parse(text === '' ? '{}' : text) as { data: T }).data;
  }

  #newDisk(): Promise<{ id: string }> {
    return this.#json('disk create', 'POST', '/api/disks', { name: newName() });
  }

  /** Commands on a disk: each has to run exactly once. */
  async #addCommands(): Promise<void> {
    const { id } = await this.#newDisk();
    const path = `/api/disks/${id}/exec`;
    this.#call('command', async (n) => {
      const command = 'echo line >> log; sleep 0.2; wc -l < log';
      const { stdout } = await this.#json<{ stdout: string }>('command', 'POST', path, {
        command,
      });
      assert.equal(stdout.trim(), String(n));
    });
  }

  async #addReads(): Promise<void> {
    const { id } = await this.#newDisk();
    this.#call('read', async () => {
      await this.#json('read', 'GET', `/api/disks/${id}`);
    });
  }

  /** Objects are written and read back by way of control. */
  async #addObjects(): Promise<void> {
    const { id } = await this.#newDisk();
    const objects = new ObjectClient(this.#api.baseUrl, this.#api.key);
    this.#call('object', async (n) => {
      const body = `content ${n}`;
      await this.#request('object put', () => objects.open('PUT', `/${id}/object`, { body }));
      const read = await this.#request('object get', () => objects.open('GET', `/${id}/object`));
      assert.equal(read, body);
    });
  }

  /** Commands in a sandbox that runs all the time. */
  async #addSandboxCommands(): Promise<void> {
    const { sandbox_id: id } = await createSandbox(this.#api);
    this.#call('sandbox command', async (n) => {
      const path = `${sandboxPath(id)}/execs?wait=true`;
      const command = 'echo line >> /root/log; wc -l < /root/log';
      const begun = await this.#json<{ stdout?: string }>('sandbox command', 'POST', path, {
        command,
      });
      assert.equal(begun.stdout?.trim(), String(n));
    });
  }

  /** Sandboxes that come and go. */
  #addSandboxes(): void {
    this.#call('sandbox', async () => {
      const body = { mem_size_mib: 256 };
      const made = await this.#json<{ sandbox_id: string }>(
        'sandbox create',
        'POST',
        '/api/sandboxes',
        body,
      );
      await this.#remove(made.sandbox_id);
    });
  }

  async #remove(sandboxId: string): Promise<void> {
    const path = sandboxPath(sandboxId);
    await this.#json('sandbox stop', 'POST', `${path}/stop?wait=true`);
    await this.#json('sandbox delete', 'DELETE', path);
  }

  /** A process whose output must arrive whole, whatever happens on the way. */
  async #addSession(): Promise<void> {
    const { sandbox_id: id } = await createSandbox(this.#api);
    const berth = new Berth({ baseUrl: this.#api.baseUrl, apiKey: this.#api.key });
    const sandbox = await berth.sandboxes.get(id);
    const command =
      'while read -r n; do head -c 100000 /dev/urandom | tee -a /root/all; done; sha256sum < /root/all >&2';
    const process = await sandbox.start(command);
    const follow = async (): Promise<void> => {
      const hash = createHash('sha256');
      let said = '';
      for await (const { stream, bytes } of process) {
        if (stream === 'stdout') hash.update(bytes);
        else said += Buffer.from(bytes).toString();
      }
      assert.equal((await process.exit).exitCode, 0);
      assert.equal(said.split(' ')[0], hash.digest('hex'));
      this.#done['session'] = process.offset;
    };
    const following = follow();
    this.#call('session input', () => process.write('next\n'), INPUT_EVERY_MS);
    const end = async (): Promise<void> => {
      await new Promise((resolve) => this.#ending.signal.addEventListener('abort', resolve));
      process.closeInput();
      await following.catch((error: unknown) => this.#failures.push(`session: ${describe(error)}`));
      await this.#remove(id);
    };
    this.#callers.push(end());
  }

  /** Begins all kinds of callers. */
  async addAll(): Promise<void> {
    await Promise.all([
      ...[this.#addCommands(), this.#addCommands(), this.#addReads(), this.#addReads()],
      ...[this.#addReads(), this.#addReads(), this.#addObjects()],
      ...[this.#addSandboxCommands(), this.#addSession()],
    ]);
    this.#addSandboxes();
  }

  get report(): LoadReport {
    return { done: this.#done, repeated: this.#repeated, failures: this.#failures };
  }

  /** Lets the last calls be answered. */
  async end(): Promise<void> {
    this.#ending.abort();
    await Promise.all(this.#callers);
  }
}

const describe = (error: unknown): string =>
  error instanceof Error ? `${error.message} ${describe(error.cause ?? '')}`.trim() : String(error);
