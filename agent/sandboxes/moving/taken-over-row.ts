import { randomUUID } from 'node:crypto';
import { isAtRest } from '../../../shared/sandbox-lifecycle.ts';
import type { SandboxExecRow, SandboxRow } from '../../system/journal/sandbox-journal.ts';
import { withoutHook } from '../../system/journal/unfinished-hook.ts';
import type { HandoverRow } from './handover-record.ts';

/**
 * How far the revision of a sandbox leaps when it changes its host. The former host may have
 * journalled and published changes that it could not write to the storage any more; all of them are
 * older.
 */
const REVISIONS_AHEAD = 1_000;

const LOST = 'the host that it ran on was lost';

/** A sandbox that another host had, as this one goes on with it. Its machine runs nowhere. */
export function takenOverRow(
  former: HandoverRow,
  { uid, hasCheckpoint }: { readonly uid: number; readonly hasCheckpoint: boolean },
): SandboxRow {
  return {
    ...former,
    ...restOf(former, hasCheckpoint),
    uid,
    slot: undefined,
    runningSince: undefined,
    expiresAt: undefined,
    idleSince: undefined,
    revision: former.revision + REVISIONS_AHEAD,
  };
}

/**
 * Whether the record beside a machine is still that of its former owner, which may be this host,
 * too: the journal has the sandbox by {@link takenOverRow}, but perhaps not its commands.
 */
export const isUnfinished = (
  { revision }: Pick<SandboxRow, 'revision'>,
  former: Pick<HandoverRow, 'revision'>,
): boolean => revision >= former.revision + REVISIONS_AHEAD;

/** A command of such a sandbox: what still ran has ended with its host. */
export function takenOverExec(
  exec: SandboxExecRow,
  { state }: Pick<SandboxRow, 'state'>,
): SandboxExecRow {
  if (exec.status !== 'running') return exec;
  const isPaused = state === 'paused';
  const endedAt = Math.max(Date.parse(exec.startedAt), Date.now());
  return {
    ...exec,
    status: exec.ending ?? (isPaused ? 'cancelled' : 'failed'),
    exitReason: isPaused ? 'the sandbox was paused' : LOST,
    finishedAt: new Date(endedAt).toISOString(),
    executeTimeMs: endedAt - Date.parse(exec.startedAt),
  };
}

type Rest = Pick<SandboxRow, 'state'> &
  Partial<Pick<SandboxRow, 'checkpoint' | 'finishedAt' | 'exitReason' | 'exitMessage' | 'hook'>>;

/**
 * The state in which it rests. A checkpoint that is whole decides: it is made durable before its
 * machine ends, and made invalid before a machine runs from it.
 */
function restOf(former: HandoverRow, hasCheckpoint: boolean): Rest {
  const { state, checkpoint = randomUUID() } = former;
  if (isAtRest(state)) return { state };
  if (hasCheckpoint && state !== 'pending_start') return { state: 'paused', checkpoint };
  const finishedAt = new Date().toISOString();
  // A sandbox that was being stopped is not started again; both go on from the disk.
  const to = state === 'stopping' ? 'stopped' : 'failed';
  return {
    ...{ state: to, finishedAt, exitReason: 'host_lost', exitMessage: LOST },
    ...withoutHook(former),
    ...(to === 'failed' ? { checkpoint: undefined } : {}),
  };
}

/** Whether it ran when its host was lost, and has not been started again. */
export const wasLostRunning = ({ state, exitReason }: SandboxRow): boolean =>
  state === 'failed' && exitReason === 'host_lost';
