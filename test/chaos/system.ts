import type { ApiClient } from '../helpers/api.ts';
import type { Fault } from './plan.ts';

/** When a fault was over, by performance.now(); undefined when there was nothing to hit. */
export type Lifted = number | undefined;

/** A whole system that a run disturbs. Whatever it notices of broken promises it reports itself. */
export interface System<Kind extends string = string> {
  /** Addresses that serve the object API; the first is control's. */
  readonly objectUrls: readonly string[];
  /** Hosts lose their power: only what a command has synced is promised. */
  readonly needsSync: boolean;
  newClient(): Promise<ApiClient>;
  /** The folders of disks on the storage, by the disk's id. */
  diskFolders(): Promise<string[]>;
  /** The faults of a round: a pure function of its arguments. @param only kinds to draw from */
  plan(seed: number, round: number, roundMs: number, only?: readonly string[]): Fault<Kind>[];
  /** Does what the plan says, and mends it again. */
  inject(fault: Fault<Kind>): Promise<Lifted>;
  /**
   * Mends everything. Resolves once all parts are ready.
   * @throws Error when one does not get there
   */
  mend(): Promise<void>;
  saveLogs(directory: string): Promise<void>;
  /** Ends everything; what is left on this machine is a finding. */
  stop(): Promise<void>;
}
