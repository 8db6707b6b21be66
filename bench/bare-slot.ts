import { type ChildProcess, spawn, type StdioOptions } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdir, rm } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import type { GuestChannel } from '../agent/machines/guest-link/guest-channel.ts';
import type { GuestExit, GuestOutput } from '../agent/machines/guest-link/guest-types.ts';
import { guestNetwork } from '../agent/machines/qemu/memory/guest-network.ts';
import { slotNamespaces } from '../agent/network/slots/slot-namespace.ts';
import { planSlot, type SlotPlan } from '../agent/network/slots/slot.ts';
import { newHostId } from '../shared/ids.ts';
import { processSpec } from '../test/helpers/guest.ts';

const CONNECT_EVERY_MS = 1;
const CLOSED = slotNamespaces({ guestLink: 'tap', routerOf: undefined });

/** A network namespace and a directory for one bare machine at a time, made beforehand. */
export class BareSlot implements AsyncDisposable {
  readonly directory: string;
  readonly plan: SlotPlan;

  private constructor(directory: string, plan: SlotPlan) {
    this.directory = directory;
    this.plan = plan;
  }

  static async make(directory: string): Promise<BareSlot> {
    const plan = planSlot(newHostId(), 0);
    await mkdir(directory, { recursive: true });
    await CLOSED.make(plan);
    return new BareSlot(directory, plan);
  }

  spawn(
    program: string,
    args: readonly string[],
    options: { stdio?: StdioOptions; env?: NodeJS.ProcessEnv } = {},
  ): ChildProcess {
    const within = [`--net=/run/netns/${this.plan.namespace}`, program, ...args];
    return spawn('nsenter', within, { stdio: ['ignore', 'ignore', 'inherit'], ...options });
  }

  configure(channel: GuestChannel): Promise<void> {
    return channel.configure({
      ...{ hostname: 'bare', machineId: randomUUID(), bootId: randomUUID() },
      ...{ directory: '/root', user: '', environment: {} },
      network: guestNetwork(this.plan),
      rootDisk: { device: '/dev/vda', type: 'ext4' },
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await CLOSED.remove(this.plan);
    await rm(this.directory, { recursive: true, force: true });
  }
}

/** Tries until it succeeds or the process has ended. */
export async function whileRunning<T>(child: ChildProcess, attempt: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      if (child.exitCode !== null || child.signalCode !== null) throw error;
      await sleep(CONNECT_EVERY_MS);
    }
  }
}

/** How a command on a guest's channel is fed and read. */
interface Talk {
  readonly input?: (id: string) => Promise<void>;
  readonly output?: (bytes: Buffer) => void;
}

/** Runs a command over the channel of a guest until it has ended and is forgotten. */
export async function runInGuest(
  channel: GuestChannel,
  command: string,
  { input, output }: Talk = {},
): Promise<void> {
  const spec = processSpec(command, { stdin: input !== undefined });
  const { promise: ended, resolve, reject } = Promise.withResolvers<void>();
  let [seen, end] = [0, Number.POSITIVE_INFINITY];
  const onOutput = ({ processId, offset, bytes }: GuestOutput): void => {
    if (processId !== spec.id) return;
    seen = offset + bytes.length;
    channel.acknowledge(spec.id, seen);
    output?.(bytes);
    if (seen >= end) resolve();
  };
  const onExit = (exit: GuestExit): void => {
    if (exit.processId !== spec.id) return;
    ({ end } = exit);
    if (seen >= end) resolve();
  };
  const onClosed = (): void => reject(new Error(`the guest went away during \`${command}\``));
  channel.on('output', onOutput).on('exited', onExit).on('closed', onClosed);
  try {
    await channel.start(spec);
    await Promise.all([input?.(spec.id), ended]);
    await channel.forget(spec.id);
  } finally {
    ended.catch(() => undefined);
    channel.off('output', onOutput).off('exited', onExit).off('closed', onClosed);
  }
}

/** Runs a command, and resolves as soon as it has put something out. */
export const firstOutput = (channel: GuestChannel, command: string): Promise<void> =>
  new Promise((resolve, reject) => {
    runInGuest(channel, command, { output: () => resolve() }).catch(reject);
  });
