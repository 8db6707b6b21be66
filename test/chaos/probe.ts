import { setTimeout as sleep } from 'node:timers/promises';
import type { ApiClient } from '../helpers/api.ts';
import { ObjectClient } from '../helpers/objects.ts';

const PROBES_EVERY_MS = 150;
const GIVES_UP_MS = 4_000;

/** Keeps checking whether callers are served: a command, and an object of the same disk. */
export class Probe implements AsyncDisposable {
  readonly #api: ApiClient;
  readonly #objects: ObjectClient;
  readonly #diskId: string;
  /** Successes, on the clock of performance.now(). */
  readonly #served: { readonly begunAt: number; readonly endedAt: number }[] = [];
  #stopped = false;
  readonly #probing: Promise<void>;

  /** @param diskId a disk with an object `probe` */
  constructor(api: ApiClient, diskId: string) {
    this.#api = api;
    this.#objects = new ObjectClient(api.baseUrl, api.key);
    this.#diskId = diskId;
    this.#probing = this.#probe();
  }

  /**
   * Milliseconds from that time until callers were served again; undefined when they are not yet.
   */
  recoveryMs(since: number): number | undefined {
    const first = this.#served.find(({ begunAt }) => begunAt >= since);
    return first === undefined ? undefined : first.endedAt - since;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped = true;
    await this.#probing;
  }

  async #probe(): Promise<void> {
    while (!this.#stopped) {
      const begunAt = performance.now();
      const isServed = await Promise.race([this.#isServed(), sleep(GIVES_UP_MS, false)]);
      if (isServed) this.#served.push({ begunAt, endedAt: performance.now() });
      await sleep(PROBES_EVERY_MS);
    }
  }

  async #isServed(): Promise<boolean> {
    try {
      const path = `/api/disks/${this.#diskId}/exec`;
      const [command, object] = await Promise.all([
        this.#api.call('POST', path, { command: 'true' }),
        this.#objects.get(this.#diskId, 'probe'),
      ]);
      return command.status === 200 && object.status === 200;
    } catch {
      return false;
    }
  }
}
