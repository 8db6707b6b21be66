import type { MachineDriver, MachineSpec } from '../../agent/machines/driver.ts';

/** A host for the machines of one driver; what tests do to it from outside of the agent. */
export interface DriverHost extends AsyncDisposable {
  /** Opens a driver like an agent; another one takes over what the first has started. */
  driver(settings?: { bootTimeoutMs?: number; hasTemplates?: boolean }): Promise<MachineDriver>;
  /** A sandbox that is not there yet, with a slot of its own. */
  newSpec(changes?: Partial<MachineSpec>): Promise<MachineSpec>;
  /** Leftovers of a sandbox on the host, besides its disk and a whole checkpoint. */
  leftOf(id: string): Promise<string[]>;
  /** The machine is gone from one moment to the next. */
  killMachine(id: string): Promise<void>;
  /** The machine runs no instruction until it is killed. */
  freezeMachine(id: string): Promise<void>;
  /** Leaves the state of a host that was restarted: nothing runs, nobody saw an end. */
  pretendRestart(id: string): Promise<void>;
}
