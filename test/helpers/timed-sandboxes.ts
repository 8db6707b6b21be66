import type { Redis } from 'ioredis';
import type { SandboxActor } from '../../agent/sandboxes/lifecycle/sandbox-actor.ts';
import type { NewSandbox } from '../../agent/sandboxes/lifecycle/new-sandbox.ts';
import type { SandboxSettings } from '../../agent/sandboxes/holds/settings.ts';
import type { SandboxState } from '../../shared/sandbox-lifecycle.ts';
import { FakeTime } from './fake-time.ts';
import { HostedSandboxes, type HostTraits } from './hosted-sandboxes.ts';

/** The sandboxes of a host whose time only the test moves. One at a time in a process. */
export class TimedSandboxes implements AsyncDisposable {
  readonly time: FakeTime;
  readonly hosted: HostedSandboxes;

  private constructor(time: FakeTime, hosted: HostedSandboxes) {
    this.time = time;
    this.hosted = hosted;
  }

  /** @param redis one that was started before */
  static async open(
    redis: Redis,
    settings?: Partial<SandboxSettings>,
    traits?: HostTraits,
  ): Promise<TimedSandboxes> {
    await redis.flushall();
    const time = new FakeTime();
    try {
      return new TimedSandboxes(time, await HostedSandboxes.open(redis, settings, traits));
    } catch (error) {
      time[Symbol.dispose]();
      throw error;
    }
  }

  /** A sandbox that runs. */
  async create(changes: Partial<NewSandbox['config']> = {}): Promise<SandboxActor> {
    const { sandboxId } = await this.hosted.create(changes);
    const actor = this.find(sandboxId);
    await this.until(actor, 'running');
    return actor;
  }

  find(sandboxId: string): SandboxActor {
    return this.hosted.registry.find({ accountId: this.hosted.accountId, sandboxId });
  }

  async until(actor: SandboxActor, state: SandboxState): Promise<void> {
    await this.time.until(`a sandbox that is ${state}`, () => actor.row.state === state);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.hosted[Symbol.asyncDispose]();
    } finally {
      this.time[Symbol.dispose]();
    }
  }
}
