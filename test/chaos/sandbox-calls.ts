import { setTimeout as sleep } from 'node:timers/promises';
import { type ApiSandboxExec, sandboxPath } from '../helpers/sandboxes.ts';
import { waitFor } from '../helpers/wait.ts';
import { attempt, STATES } from './attempt.ts';
import type { WorkloadContext } from './workload.ts';

/** How long a sandbox or its command may take to come to rest. */
export const SETTLES_WITHIN_MS = 150_000;
const LOOKS_EVERY_MS = 200;

/**
 * Runs a command in a sandbox to its end.
 * @param wait whether the first answer is to wait for the end; then a fault can cut it off
 * @returns its record; none, and the error's code, when its outcome is unknown
 */
export async function execToEnd(
  { api, findings }: WorkloadContext,
  id: string,
  command: string,
  wait = true,
): Promise<{ code: string; exec?: ApiSandboxExec }> {
  const path = `${sandboxPath(id)}/execs`;
  const options = { body: { command }, expected: STATES };
  const begun = await attempt(findings, api, ['POST', wait ? `${path}?wait=true` : path], options);
  if (begun.code !== 'ok') return { code: begun.code };
  let exec = begun.data as ApiSandboxExec;
  const deadline = performance.now() + SETTLES_WITHIN_MS;
  while (exec.status === 'running' && performance.now() < deadline) {
    await sleep(LOOKS_EVERY_MS);
    const { code, data } = await attempt(findings, api, ['GET', `${path}/${exec.exec_id}`]);
    if (code === 'ok') exec = data as ApiSandboxExec;
  }
  if (exec.status === 'running') findings.report(`command ${exec.exec_id} of ${id} never ends`);
  return { code: 'ok', exec };
}

/** Stops and deletes a sandbox, unless it is gone. */
export async function removeSandbox({ api, findings }: WorkloadContext, id: string): Promise<void> {
  await waitFor(
    `the deletion of ${id}`,
    async () => {
      const expected = [...STATES, 'not_found'];
      const { code } = await attempt(findings, api, ['DELETE', sandboxPath(id)], { expected });
      if (code === 'ok' || code === 'not_found') return true;
      const stop = ['POST', `${sandboxPath(id)}/stop?wait=true`] as const;
      await attempt(findings, api, stop, { expected: STATES });
      return false;
    },
    SETTLES_WITHIN_MS,
  );
}
