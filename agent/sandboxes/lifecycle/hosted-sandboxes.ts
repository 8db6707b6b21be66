import type { SandboxRow } from '../../system/journal/sandbox-journal.ts';
import type { SandboxActor } from './sandbox-actor.ts';

/** The sandboxes of this host, as moving between hosts needs them (sandbox-registry.ts). */
export interface HostedSandboxes {
  readonly actors: readonly SandboxActor[];
  has(sandboxId: string): boolean;
  /** Adds a sandbox that is journalled, or about to be. */
  add(row: SandboxRow): SandboxActor;
  /** Holds the image that the sandbox's disk stands on; a failure is logged only. */
  holdImage(row: SandboxRow): Promise<void>;
  /** Remembers that another host has a sandbox, or may have it soon: its jobs are to go there. */
  noteMoved(sandboxId: string): void;
  /** The opposite of {@link noteMoved}. */
  noteReturned(sandboxId: string): void;
  /** Like {@link noteMoved}, and releases what this host holds for the sandbox. */
  forgetMoved(actor: SandboxActor): void;
}
