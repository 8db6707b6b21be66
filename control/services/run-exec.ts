import { AppError } from '../../shared/errors.ts';
import type { ExecMount } from '../../shared/jobs.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { ExecResult } from '../../shared/schemas/exec.ts';
import type { Deps } from '../deps.ts';
import { callHandler, type RequestContext } from './call-handler.ts';
import { findDisk } from './find-disk.ts';

const wholeDisk = (diskId: string): ExecMount => ({
  diskId,
  path: '',
  subdirectory: '',
  readOnly: false,
});

const msSince = (then: number): number => Math.round(performance.now() - then);

/**
 * Runs a command on one disk and waits for its end (SPEC "Single-disk exec", WIRE §5.1).
 * @param arrivedAt when the request arrived, on the clock of `performance.now()`
 * @throws AppError `not_found`, `bad_request`, `timeout`, `no_capacity`, `unavailable`,
 *   `outcome_unknown`
 */
export async function runExec(
  deps: Deps,
  disk: { accountId: string; diskId: string },
  command: string,
  arrivedAt: number,
  context: RequestContext,
): Promise<ExecResult> {
  if (Buffer.byteLength(command) > LIMITS.commandBytesMax) {
    throw new AppError('bad_request', `command is longer than ${LIMITS.commandBytesMax} bytes`);
  }
  if (command.includes('\0')) throw new AppError('bad_request', 'command contains a NUL character');
  const deadlineAt = Date.now() + deps.config.execTimeoutMs;
  const { accountId, diskId } = disk;
  const entry = await findDisk(deps, accountId, diskId);
  const { result, body } = await callHandler(
    deps,
    entry,
    { kind: 'exec.run', payload: { accountId, mounts: [wholeDisk(diskId)], command }, deadlineAt },
    context,
  );
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
