/*
 * A driver of sandboxes whose machines are objects in memory (`InMemoryHost`). It does in the same
 * order what the driver of virtual machines does, and passes the same tests (test/conformance). At
 * each step a test may have it wait, fail, or never go on, as if its agent had been killed there.
 */
import type { MachineMount } from '../../agent/machines/attachments.ts';
import { AppError } from '../../shared/errors.ts';
import { sandboxIdPattern } from '../../shared/ids.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import type { GuestChannel } from '../../agent/machines/guest-link/guest-channel.ts';
import { GuestUnavailableError } from '../../agent/machines/guest-link/guest-errors.ts';
import {
  BootError,
  type Machine,
  type MachineDriver,
  type MachineEnd,
  type MachineImage,
  type MachineOrigin,
  type MachineUsage,
  type MachineOwner,
  type MachineSpec,
} from '../../agent/machines/driver.ts';
import { InMemoryGuestLink } from './in-memory-guest-link.ts';
import type { InMemoryHost, InMemoryVm } from './in-memory-host.ts';

const GUEST_MS_MAX = 10_000;
/** The image of machines that were given none. */
const DEFAULT_IMAGE = '/images/default';
const idPattern = new RegExp(sandboxIdPattern, 'u');

/** Settles when the driver may go on; what it rejects with has gone wrong there. */
export type Gate = (point: string, id: string) => Promise<void>;

const open: Gate = () =>
  new Promise((resolve) => {
    setImmediate(resolve);
  });

interface StopRequest {
  readonly isForced: boolean;
}

interface Parts {
  readonly host: InMemoryHost;
  readonly gate: Gate;
}

const thaw = (channel: GuestChannel): Promise<void> => channel.thaw();

const aborted = (signal: AbortSignal): Promise<never> =>
  new Promise((_, reject) => {
    const fail = (): void => reject(signal.reason as Error);
    if (signal.aborted) fail();
    else signal.addEventListener('abort', fail, { once: true });
  });

/** Like `AbortSignal.timeout`, by the clock that tests set. */
function abortAfter(
  ms: number,
  reason: () => Error,
): Disposable & { readonly signal: AbortSignal } {
  const controller = new AbortController();
  const timer = setTimeout(() => controller.abort(reason()), ms);
  return { signal: controller.signal, [Symbol.dispose]: () => clearTimeout(timer) };
}

/** Something done to the host: before and after it an agent may be killed. */
async function effect<T>(gate: Gate, name: string, id: string, action: () => T): Promise<T> {
  await gate(`before ${name}`, id);
  const result = action();
  await gate(`after ${name}`, id);
  return result;
}

const describeEnd = (vm: InMemoryVm, stop: StopRequest | undefined): MachineEnd => {
  const { end, hostKill } = vm;
  if (end === 'guest_panic') return { reason: end, message: 'the kernel failed: sysrq' };
  if (end === 'out_of_memory') return { reason: end, message: 'no memory was left' };
  if (end === 'guest_shutdown') {
    return stop === undefined
      ? { reason: end, message: 'the guest shut down by itself' }
      : { reason: 'stopped', message: 'the guest shut down as asked' };
  }
  if (hostKill !== undefined) return { reason: 'killed_by_host', message: hostKill };
  return stop?.isForced === true
    ? { reason: 'stop_forced', message: 'the machine was killed' }
    : { reason: 'vmm_crashed', message: 'the machine ended with SIGKILL' };
};

class InMemoryMachine implements Machine {
  readonly vm: InMemoryVm;
  readonly guest: InMemoryGuestLink;
  readonly ended: Promise<MachineEnd>;
  origin: MachineOrigin | undefined;
  readonly #parts: Parts;
  #stopRequest: StopRequest | undefined;
  #isDetached = false;

  constructor(parts: Parts, vm: InMemoryVm) {
    this.#parts = parts;
    this.vm = vm;
    this.guest = new InMemoryGuestLink(() => vm.guest.connect());
    this.ended = this.#watch();
  }

  async stop(graceMs: number): Promise<MachineEnd> {
    this.#stopRequest ??= { isForced: false };
    this.#ask((channel) => channel.shutdown(graceMs / 2), graceMs).catch(() => undefined);
    if (!(await settledWithin(this.ended, graceMs))) {
      this.#stopRequest = { isForced: true };
      await this.#effect('kill machine', () => this.vm.stop('killed'));
    }
    return this.ended;
  }

  async kill(why = 'the host ended the machine'): Promise<MachineEnd> {
    this.vm.hostKill ??= why;
    await this.#effect('kill machine', () => this.vm.stop('killed'));
    return this.ended;
  }

  async usage(): Promise<MachineUsage> {
    return {}; // Nothing is measured of machines in memory.
  }

  async pause(): Promise<void> {
    const { host } = this.#parts;
    const { id } = this.vm;
    this.#requireLive();
    try {
      await this.#ask((channel) => channel.freeze(GUEST_MS_MAX), GUEST_MS_MAX);
      await this.#effect('save memory', () => {
        this.#requireLive();
        host.saveCheckpoint(id, this.vm.guest.remember());
      });
      await this.#effect('finish checkpoint', () => {
        this.#requireLive();
        host.finishCheckpoint(id);
      });
    } catch (error) {
      if (host.wholeCheckpoint(id) === undefined) {
        host.checkpoints.delete(id);
        this.vm.guest.isFrozen = false;
        throw error;
      }
      // The checkpoint counts from the moment it is whole: the machine must not run on.
    }
    this.detach();
    await this.#effect('end paused machine', () => this.vm.stop('killed'));
  }

  async continueAfterCrash(): Promise<void> {
    await this.#effect('continue machine', () => undefined);
    if (!this.vm.isRunning) return; // Its end is told by itself.
    await this.#ask(thaw, GUEST_MS_MAX).catch(() => {
      // The guest is thawed when it answers.
      this.guest.call(this.guest.closed, thaw).catch(() => undefined);
    });
  }

  async fork(child: MachineOwner): Promise<void> {
    const { host } = this.#parts;
    try {
      this.#requireLive();
      await this.#ask((channel) => channel.freeze(GUEST_MS_MAX), GUEST_MS_MAX);
      await this.#effect('copy disk', () => {
        this.#requireLive();
        host.copyDisk(this.vm.id, child.vmId, child.uid);
      });
      await this.#effect('copy memory', () => {
        this.#requireLive();
        host.saveCheckpoint(child.vmId, this.vm.guest.remember());
      });
      await this.#effect('finish fork', () => host.finishCheckpoint(child.vmId));
    } catch (cause) {
      host.remove(child.vmId);
      const message = 'the sandbox ended or does not answer now; try again';
      throw new AppError('unavailable', message, { cause });
    } finally {
      this.vm.guest.isFrozen = false;
    }
  }

  detach(): void {
    this.#isDetached = true;
    this.guest.close();
  }

  /** Tells the guest who it is. */
  async configure({ settings }: MachineSpec, signal: AbortSignal): Promise<void> {
    const { slot: _, ...told } = { ...settings, slot: undefined };
    const rest = { network: undefined, rootDisk: undefined };
    await this.guest.call(signal, (channel) => channel.configure({ ...told, ...rest }));
  }

  async #watch(): Promise<MachineEnd> {
    await this.vm.ended;
    const isKnown = await this.#parts.gate('notice end', this.vm.id).then(
      () => true,
      () => false,
    );
    if (this.#isDetached) return new Promise(() => undefined);
    this.guest.close();
    if (!isKnown) return { reason: 'vmm_crashed', message: 'how the machine ended is not known' };
    return describeEnd(this.vm, this.#stopRequest);
  }

  #requireLive(): void {
    if (!this.vm.isRunning) throw new GuestUnavailableError('the machine has ended');
    if (this.guest.channel === undefined) throw new GuestUnavailableError('the guest is silent');
  }

  async #ask(request: (channel: GuestChannel) => Promise<void>, ms: number): Promise<void> {
    using late = abortAfter(ms, () => new GuestUnavailableError('the guest is silent'));
    await Promise.race([this.guest.call(late.signal, request), aborted(late.signal)]);
  }

  #effect(name: string, action: () => void): Promise<void> {
    return effect(this.#parts.gate, name, this.vm.id, action);
  }
}

export interface InMemoryDriverSettings {
  readonly gate?: Gate;
  readonly bootTimeoutMs?: number;
  readonly hasTemplates?: boolean;
  /** The trait; memory of paused machines is in checkpoints either way. */
  readonly pausedStaysInMemory?: boolean;
}

export class InMemoryDriver implements MachineDriver {
  readonly traits: MachineDriver['traits'];
  readonly #host: InMemoryHost;
  readonly #gate: Gate;
  readonly #bootTimeoutMs: number;
  readonly #hasTemplates: boolean;
  /** Those that are up, until they are reclaimed. */
  readonly #machines = new Map<string, InMemoryMachine>();
  /** Those of them that wait for `start`. */
  readonly #prewarmed = new Set<string>();

  constructor(host: InMemoryHost, settings: InMemoryDriverSettings = {}) {
    this.#host = host;
    this.#gate = settings.gate ?? open;
    this.#bootTimeoutMs = settings.bootTimeoutMs ?? 60_000;
    this.#hasTemplates = settings.hasTemplates ?? false;
    const { pausedStaysInMemory = false } = settings;
    this.traits = { hasOwnKernel: true, pausedStaysInMemory, forksHaveMemory: true };
  }

  async prepare({ vmId: id, uid }: MachineOwner, image?: MachineImage): Promise<void> {
    checkId(id);
    const base = image?.rootDisk ?? DEFAULT_IMAGE;
    await this.#effect('make root disk', id, () => this.#host.makeDisk(id, uid, base));
  }

  mountsInUse(_: string, mounts: readonly MachineMount[]): Promise<readonly MachineMount[]> {
    return Promise.resolve(this.traits.pausedStaysInMemory ? mounts : []);
  }

  releaseDisks(): void {}

  hasDisk(id: string): Promise<boolean> {
    return Promise.resolve(this.#host.disks.has(id));
  }

  needsImage(id: string): Promise<boolean> {
    return Promise.resolve(!this.#host.disks.has(id));
  }

  hasTemplate(): Promise<boolean> {
    return Promise.resolve(this.#hasTemplates);
  }

  async prewarm(
    spec: MachineSpec,
    signal: AbortSignal,
    image?: MachineImage,
  ): Promise<Pick<Machine, 'ended'>> {
    await this.prepare(spec, image);
    const hasMemory = await this.hasCheckpoint(spec.vmId);
    const machine = await this.#bringUp(spec, signal, (limit) =>
      hasMemory ? this.#restore(spec, limit) : this.#boot(spec, limit),
    );
    this.#prewarmed.add(spec.vmId);
    return machine;
  }

  async start(spec: MachineSpec, signal: AbortSignal): Promise<Machine> {
    const { vmId } = spec;
    const prewarmed = this.#prewarmed.delete(vmId) ? this.#machines.get(vmId) : undefined;
    if (prewarmed !== undefined && (await this.#adopt(prewarmed, spec, signal))) return prewarmed;
    return this.#bringUp(spec, signal, (limit) => this.#boot(spec, limit));
  }

  async resume(spec: MachineSpec, signal: AbortSignal): Promise<Machine> {
    const { vmId } = spec;
    const prewarmed = this.#prewarmed.delete(vmId) ? this.#machines.get(vmId) : undefined;
    if (prewarmed !== undefined && (await this.#adopt(prewarmed, spec, signal))) return prewarmed;
    return this.#bringUp(spec, signal, (limit) => this.#restore(spec, limit));
  }

  async #restore(spec: MachineSpec, limit: AbortSignal): Promise<InMemoryMachine> {
    const checkpoint = this.#host.wholeCheckpoint(spec.vmId);
    if (checkpoint === undefined) throw new Error('there is no checkpoint');
    const machine = await this.#launch(spec, limit, checkpoint.memory);
    await this.#untilRunning(machine, spec, limit, async (until) => {
      await this.#within(until, 'use up checkpoint', spec.vmId, () => {
        this.#host.checkpoints.delete(spec.vmId);
      });
      this.#host.noteResumed(spec.vmId, checkpoint);
    });
    return this.#risen(machine, 'checkpoint');
  }

  async hasCheckpoint(id: string): Promise<boolean> {
    await this.#gate('read checkpoint', id);
    return this.#host.wholeCheckpoint(id) !== undefined;
  }

  async discardCheckpoint(id: string): Promise<void> {
    await this.#effect('discard checkpoint', id, () => this.#host.checkpoints.delete(id));
  }

  async pause(id: string): Promise<void> {
    await this.#running(id).pause();
    this.#machines.delete(id);
  }

  async continueAfterCrash(id: string): Promise<void> {
    await this.#running(id).continueAfterCrash();
  }

  async fork(id: string, child: MachineOwner): Promise<void> {
    const running = this.#machines.get(id);
    if (running !== undefined) return running.fork(child);
    if (!this.#host.disks.has(id)) return;
    try {
      await this.#effect('copy disk at rest', id, () => {
        this.#host.copyDisk(id, child.vmId, child.uid);
      });
      const checkpoint = this.#host.wholeCheckpoint(id);
      if (checkpoint === undefined) return;
      await this.#effect('copy checkpoint', id, () => {
        this.#host.saveCheckpoint(child.vmId, checkpoint.memory);
        this.#host.finishCheckpoint(child.vmId);
      });
    } catch (error) {
      await this.remove(child.vmId);
      throw error;
    }
  }

  async recover(spec: MachineSpec): Promise<Machine | MachineEnd> {
    const vm = this.#host.vms.get(spec.vmId);
    await this.#gate('recover', spec.vmId);
    if (vm === undefined)
      return { reason: 'vmm_crashed', message: 'nothing is left of the machine' };
    if (vm.isRunning) {
      const machine = new InMemoryMachine({ host: this.#host, gate: this.#gate }, vm);
      this.#machines.set(spec.vmId, machine);
      return machine;
    }
    return vm.hostBoot === this.#host.boot
      ? describeEnd(vm, undefined)
      : { reason: 'host_restarted', message: 'the host was restarted' };
  }

  async reclaim(id: string): Promise<void> {
    checkId(id);
    this.#machines.get(id)?.detach();
    this.#machines.delete(id);
    this.#prewarmed.delete(id);
    try {
      await this.#gate('before reclaim machine', id);
    } finally {
      this.#host.vms.get(id)?.stop('killed'); // Its processes are killed first, so also when the rest fails.
    }
    this.#host.clear(id);
    await this.#gate('after reclaim machine', id);
  }

  async remove(id: string): Promise<void> {
    await this.#effect('remove sandbox', id, () => {
      if (this.#host.vms.has(id)) this.#host.fault(`${id}: removed before it was reclaimed`);
      this.#host.remove(id);
    });
  }

  userOf(id: string): Promise<number | undefined> {
    return Promise.resolve(this.#host.vms.get(id)?.uid ?? this.#host.disks.get(id)?.uid);
  }

  storedBytes(id: string): Promise<number> {
    return Promise.resolve(this.#host.disks.get(id)?.layers.length ?? 0);
  }

  list(): Promise<string[]> {
    return Promise.resolve(this.#host.list());
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  #running(id: string): InMemoryMachine {
    const machine = this.#machines.get(id);
    if (machine === undefined) throw new GuestUnavailableError('the machine does not run');
    return machine;
  }

  async #bringUp(
    spec: MachineSpec,
    signal: AbortSignal,
    begin: (limit: AbortSignal) => Promise<InMemoryMachine>,
  ): Promise<InMemoryMachine> {
    signal.throwIfAborted();
    if (this.#host.vms.has(spec.vmId)) await this.reclaim(spec.vmId);
    const message = `the guest was not ready within ${this.#bootTimeoutMs} ms`;
    using late = abortAfter(this.#bootTimeoutMs, () => new BootError('boot_timeout', message));
    try {
      const machine = await begin(AbortSignal.any([signal, late.signal]));
      this.#machines.set(spec.vmId, machine);
      return machine;
    } catch (error) {
      await this.#effect('kill failed machine', spec.vmId, () => {
        this.#host.vms.get(spec.vmId)?.stop('killed');
      });
      signal.throwIfAborted();
      if (error instanceof BootError) throw error;
      throw new BootError('boot_failed', String(error), { cause: error });
    }
  }

  async #boot(spec: MachineSpec, limit: AbortSignal): Promise<InMemoryMachine> {
    const machine = await this.#launch(spec, limit);
    this.#host.noteBooted(spec.vmId);
    await this.#untilRunning(machine, spec, limit, (until) =>
      this.#within(until, 'boot guest', spec.vmId, () => undefined),
    );
    return this.#risen(machine, this.#hasTemplates ? 'template' : 'boot');
  }

  #risen(machine: InMemoryMachine, kind: MachineOrigin['kind']): InMemoryMachine {
    machine.origin = { kind, beganAt: performance.now() };
    return machine;
  }

  async #launch(
    spec: MachineSpec,
    limit: AbortSignal,
    ...memory: ConstructorParameters<typeof InMemoryVm>[3][]
  ): Promise<InMemoryMachine> {
    const { vmId: id, uid, slot } = spec;
    const vm = await this.#within(limit, 'launch machine', id, () =>
      this.#host.launch(id, { uid, slot: slot.index }, ...memory),
    );
    return new InMemoryMachine({ host: this.#host, gate: this.#gate }, vm);
  }

  /** Lets go of the machine when that fails; it is to be reclaimed then. */
  async #untilRunning(
    machine: InMemoryMachine,
    spec: MachineSpec,
    limit: AbortSignal,
    bringUp: (limit: AbortSignal) => Promise<void>,
  ): Promise<void> {
    const over = new AbortController();
    const untilOver = AbortSignal.any([limit, over.signal]);
    const endedEarly = machine.ended.then((end) => {
      throw new BootError('boot_failed', `${end.reason}: ${end.message}`);
    });
    endedEarly.catch(() => undefined);
    const run = async (): Promise<void> => {
      await bringUp(untilOver);
      await machine.configure(spec, untilOver);
    };
    try {
      await Promise.race([run(), endedEarly, aborted(limit)]);
    } catch (error) {
      machine.detach();
      throw error;
    } finally {
      over.abort(new Error('it is over'));
    }
  }

  async #adopt(machine: InMemoryMachine, spec: MachineSpec, signal: AbortSignal): Promise<boolean> {
    using late = abortAfter(GUEST_MS_MAX, () => new Error('it does not answer'));
    const soonest = AbortSignal.any([signal, late.signal]);
    try {
      await this.#untilRunning(machine, spec, soonest, (until) =>
        this.#within(until, 'adopt machine', spec.vmId, () => undefined),
      );
      this.#risen(machine, 'prewarmed');
      return true;
    } catch {
      await this.#effect('kill failed machine', spec.vmId, () => machine.vm.stop('killed'));
      return false;
    }
  }

  #effect<T>(name: string, id: string, action: () => T): Promise<T> {
    checkId(id);
    return effect(this.#gate, name, id, action);
  }

  /** Like `#effect`, unless it is given up before. */
  #within<T>(limit: AbortSignal, name: string, id: string, action: () => T): Promise<T> {
    const gate: Gate = (...point) => Promise.race([this.#gate(...point), aborted(limit)]);
    return effect(gate, name, id, () => {
      limit.throwIfAborted();
      return action();
    });
  }
}

function checkId(id: string): void {
  if (!idPattern.test(id)) throw new RangeError(`not the id of a sandbox: ${id}`);
}
