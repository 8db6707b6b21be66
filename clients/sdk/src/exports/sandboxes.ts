/**
 * Sandboxes, their recorded commands, network and snapshots.
 *
 * @module sandboxes
 */
export {
  type CreateSandboxOptions,
  type RunOptions,
  Sandbox,
  Sandboxes,
  type SnapshotOptions,
} from '../sandbox.ts';
export { SandboxExecs } from '../sandbox-execs.ts';
export { SandboxNetwork } from '../sandbox-network.ts';
export { Snapshot, Snapshots } from '../snapshot.ts';
