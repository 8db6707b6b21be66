import { SANDBOX_LIMITS } from '../limits.ts';
import type { SandboxProcess } from '../../../shared/schemas/sandbox-process.ts';
import {
  type GuestProcessRecord,
  PROCESS_FLAGS,
} from '../../machines/guest-link/guest-protocol.ts';
import { endOfProcess } from '../../machines/guest-link/process-end.ts';
import { processExit } from './process-exit.ts';
import type { AttachableProcess } from './attachable-process.ts';

function endFields(
  record: GuestProcessRecord,
): Pick<SandboxProcess, 'status' | 'ended_at' | 'exit_code' | 'exit_reason'> {
  if ((record.flags & PROCESS_FLAGS.exited) === 0) return { status: 'running' };
  const { status, exitCode, reason } = processExit(endOfProcess(record));
  return {
    status,
    ended_at: new Date(record.endedAt).toISOString(),
    ...(exitCode === undefined ? {} : { exit_code: exitCode }),
    ...(reason === undefined ? {} : { exit_reason: reason }),
  };
}

/** @param known what this agent knows of the process besides the guest's record */
function presentProcess(
  record: GuestProcessRecord,
  known: AttachableProcess | undefined,
): SandboxProcess {
  const { id, pid, flags, columns, rows, end } = record;
  const { command } = known ?? {};
  const { sandboxCommandListedMax: lengthMax } = SANDBOX_LIMITS;
  return {
    process_id: id,
    pid,
    ...endFields(record),
    ...(command === undefined ? {} : { command: command.slice(0, lengthMax) }),
    ...(command !== undefined && command.length > lengthMax ? { command_truncated: true } : {}),
    ...((flags & PROCESS_FLAGS.terminal) === 0 ? {} : { terminal: { cols: columns, rows } }),
    attached_clients: known?.attachedCount ?? 0,
    output_bytes: end,
  };
}

/** The attachable processes among all that a guest has, as the API shows them. */
export const presentProcesses = (
  records: readonly GuestProcessRecord[],
  known: ReadonlyMap<string, AttachableProcess>,
): SandboxProcess[] =>
  records
    .filter(({ flags }) => (flags & PROCESS_FLAGS.session) !== 0)
    .map((record) => presentProcess(record, known.get(record.id)));
