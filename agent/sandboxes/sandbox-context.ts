import type { CopyGate } from './copy-gate.ts';
import type { CurrentSession } from './current-session.ts';
import type { SandboxExecs } from './execs/sandbox-execs.ts';
import type { SandboxProcesses } from './processes/sandbox-processes.ts';
import type { HostCapacity } from './host-capacity.ts';
import type { JournalledSandbox, JournalledSandboxDeps } from './journalled-sandbox.ts';
import type { MachineSessionDeps } from './machine-session.ts';
import type { ObserveStart } from './start-clock.ts';
import type { TransitionWatchdog } from './transition-watchdog.ts';

/** What all sandboxes of a host work with. */
export interface SandboxActorDeps extends JournalledSandboxDeps, MachineSessionDeps {
  readonly capacity: HostCapacity;
  readonly bootTimeoutMs: number;
  readonly observeStart: ObserveStart;
}

/**
 * What one sandbox is made of. Its actor makes it; the steps of its life (sandbox-start.ts,
 * sandbox-pause.ts, sandbox-rest.ts, sandbox-recovery.ts, sandbox-deletion.ts) are functions of it,
 * called within messages of the actor's mailbox.
 */
export interface SandboxContext {
  readonly deps: SandboxActorDeps;
  readonly sandbox: JournalledSandbox;
  readonly execs: SandboxExecs;
  readonly processes: SandboxProcesses;
  readonly current: CurrentSession;
  readonly watchdog: TransitionWatchdog;
  readonly copies: CopyGate;
}
