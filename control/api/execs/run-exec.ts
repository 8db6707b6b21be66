import { AppError } from '../../../shared/errors.ts';
import type { ExecMount } from '../../../shared/jobs/command-kinds.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import type { ExecResult } from '../../../shared/schemas/exec.ts';
import { inSpan } from '../../../shared/spans.ts';
import type { Deps } from '../../region/deps.ts';
import { callDiskHost, type RequestContext } from '../../region/call-disk-host.ts';
import { findDisk } from '../../region/find-disk.ts';

export interface ExecRequest {
  readonly accountId: string;
  readonly mounts: readonly ExecMount[];
  readonly command: string;
  /** When the request arrived, on the clock of `performance.now()`. */
  readonly arrivedAt: number;
}

const msSince = (then: number): number => Math.round(performance.now() - then);

/** @throws AppError `bad_request` */
export function checkCommand(command: string): void {
  if (Buffer.byteLength(command) > SCHEMA_LIMITS.commandBytesMax) {
    throw new AppError(
      'bad_request',
      `command is longer than ${SCHEMA_LIMITS.commandBytesMax} bytes`,
    );
  }
  if (command.includes('\0')) throw new AppError('bad_request', 'command contains a NUL character');
}

/**
 * Runs a command on its disks and waits for its end (docs/api.md, Exec).
 * @throws AppError `not_found`, `bad_request`, `timeout`, `no_capacity`, `unavailable`,
 *   `outcome_unknown`, `disk_in_use`, `delegation_conflict`, `delegation_revoked`
 */
export async function runExec(
  deps: Deps,
  { accountId, mounts, command, arrivedAt }: ExecRequest,
  context: RequestContext,
): Promise<ExecResult> {
  checkCommand(command);
  const deadlineAt = Date.now() + deps.config.execTimeoutMs;
  const diskIds = [...new Set(mounts.map(({ diskId }) => diskId))];
  const disks = await inSpan({ name: 'directory.read' }, () =>
    Promise.all(diskIds.map((diskId) => findDisk(deps, accountId, diskId))),
  );
  const payload = { accountId, mounts: [...mounts], command };
  const job = { kind: 'exec.run' as const, payload, deadlineAt };
  const { result, body } = await callDiskHost(deps, disks, job, context);
  const [stdout = Buffer.alloc(0), stderr = Buffer.alloc(0)] = body;
  const totalMs = msSince(arrivedAt);
  return {
    exitCode: result.exitCode,
    stdout: stdout.toString('utf8'), // Bytes that are not UTF-8 become U+FFFD.
    stderr: stderr.toString('utf8'),
    timing: {
      totalMs,
      queueMs: Math.max(0, totalMs - result.executeMs - result.endMs),
      executeMs: result.executeMs,
    },
  };
}
