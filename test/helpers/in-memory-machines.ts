import { planSlot } from '../../agent/network/slots/slot.ts';
import type { MachineSpec } from '../../agent/machines/driver.ts';
import { newHostId } from '../../shared/ids.ts';
import type { DriverHost } from '../conformance/driver-host.ts';
import { type Gate, InMemoryDriver } from './in-memory-driver.ts';
import { InMemoryHost } from './in-memory-host.ts';
import { machineSpec } from './machine-spec.ts';

const UID_BASE = 700_000_000;

/**
 * Lets the driver go on after a turn of the event loop, but for a guest that is not to be ready.
 */
const neverReady: Gate = (point) =>
  new Promise((resolve) => {
    if (point !== 'before boot guest') setImmediate(resolve);
  });

/** A host for machines in memory. */
export class InMemoryMachines implements DriverHost {
  readonly host = new InMemoryHost();
  readonly #hostId = newHostId();
  #last = 0;

  /** @param settings one that bounds the time for a boot has a guest that is never ready */
  async driver(
    settings: { bootTimeoutMs?: number; hasTemplates?: boolean } = {},
  ): Promise<InMemoryDriver> {
    const gate = settings.bootTimeoutMs === undefined ? {} : { gate: neverReady };
    return new InMemoryDriver(this.host, { ...settings, ...gate });
  }

  async newSpec(changes: Partial<MachineSpec> = {}): Promise<MachineSpec> {
    this.#last += 1;
    return machineSpec({
      uid: UID_BASE + this.#last,
      slot: planSlot(this.#hostId, this.#last),
      ...changes,
    });
  }

  async leftOf(id: string): Promise<string[]> {
    return this.host.vms.has(id) ? [id] : [];
  }

  async killMachine(id: string): Promise<void> {
    this.host.vms.get(id)?.stop('killed');
  }

  async freezeMachine(id: string): Promise<void> {
    const vm = this.host.vms.get(id);
    if (vm !== undefined) vm.guest.isSilent = true;
  }

  async pretendRestart(id: string): Promise<void> {
    const vm = this.host.vms.get(id);
    if (vm === undefined) return;
    vm.hostBoot -= 1;
    vm.stop('killed');
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const id of this.host.list()) this.host.remove(id);
  }
}
