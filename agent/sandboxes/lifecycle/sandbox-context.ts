import type { SandboxRow } from '../../system/journal/sandbox-journal.ts';
import type { CopyGate } from './copy-gate.ts';
import type { CurrentRun } from './current-run.ts';
import type { StorageAnswers } from './deadline.ts';
import type { SandboxExecs } from '../execs/sandbox-execs.ts';
import type { SandboxProcesses } from '../processes/sandbox-processes.ts';
import type { HostCapacity } from '../holds/host-capacity.ts';
import type { ImageWait } from './image-wait.ts';
import type { JournalledSandbox, JournalledSandboxDeps } from './journalled-sandbox.ts';
import type { MachineRunDeps } from './machine-run.ts';
import type { SandboxUses } from './sandbox-uses.ts';
import type { PauseDrain } from './pause-drain.ts';
import type { PrewarmedMachines } from '../prewarming/prewarmed-machines.ts';
import type { ObserveStart } from './start-clock.ts';
import type { TransitionWatchdog } from './transition-watchdog.ts';
import type { UidPool } from '../holds/uid-pool.ts';

/** Dependencies that the sandboxes of a host share. */
export interface SandboxActorDeps extends JournalledSandboxDeps, MachineRunDeps {
  readonly capacity: HostCapacity;
  readonly storage: StorageAnswers;
  /** Knows the uids of all journalled sandboxes. */
  readonly uids: UidPool;
  readonly prewarmed: PrewarmedMachines;
  readonly bootTimeoutMs: number;
  readonly observeStart: ObserveStart;
  /** Told each time a sandbox has entered a state, or was recovered in it. */
  readonly stateEntered?: (row: SandboxRow) => void;
}

/**
 * The parts of one sandbox, created by its actor. The steps of its lifecycle (sandbox-start.ts,
 * sandbox-pause.ts, sandbox-rest.ts, recover-sandbox.ts, sandbox-deletion.ts) are functions that
 * take this context; the actor calls them within messages of its mailbox.
 */
export interface SandboxContext {
  readonly deps: SandboxActorDeps;
  readonly sandbox: JournalledSandbox;
  readonly uses: SandboxUses;
  readonly execs: SandboxExecs;
  readonly processes: SandboxProcesses;
  readonly current: CurrentRun;
  readonly watchdog: TransitionWatchdog;
  readonly copies: CopyGate;
  readonly drain: PauseDrain;
  readonly imageWait: ImageWait;
  /** Sends a message to the mailbox. @throws AppError `no_capacity` when too many wait */
  readonly send: <T>(handle: () => Promise<T>) => Promise<T>;
}
