import { setTimeout as sleep } from 'node:timers/promises';
import type { ApiClient } from '../helpers/api.ts';
import { clockErrorMs } from '../helpers/guest-clock.ts';
import { type ApiSandboxExec, sandboxPath } from '../helpers/sandboxes.ts';
import { attempt, STATES } from './attempt.ts';
import type { Findings } from './findings.ts';

const OFF_MS_MAX = 300;
const CORRECTED_WITHIN_MS = 1_000;
/** Another fault may stop the machine or its agent again, just before one of them. */
const READINGS = 3;

/**
 * By how much a sandbox's clock is off; undefined when it does not run, or cannot be reached now.
 */
async function errorOf(
  api: ApiClient,
  id: string,
  findings: Findings,
): Promise<number | undefined> {
  try {
    return await clockErrorMs(async (command) => {
      const path = `${sandboxPath(id)}/execs?wait=true`;
      const answer = await attempt(findings, api, ['POST', path], {
        ...{ body: { command }, expected: STATES },
      });
      const exec = answer.data as ApiSandboxExec | undefined;
      if (exec?.status !== 'completed') throw new Error(`it answered ${answer.code}`);
      return exec.stdout ?? '';
    });
  } catch {
    return undefined;
  }
}

/** Reports a sandbox whose clock is off, and stays so, after a fault has been lifted. */
export async function checkClock(api: ApiClient, id: string, findings: Findings): Promise<void> {
  const errors: (number | undefined)[] = [];
  do {
    await sleep(CORRECTED_WITHIN_MS);
    errors.push(await errorOf(api, id, findings));
  } while (errors.length < READINGS && (errors.at(-1) ?? 0) > OFF_MS_MAX);
  const last = errors.at(-1);
  if (last === undefined) return;
  findings.count('clocks read');
  if (last > OFF_MS_MAX) findings.report(`the clock of ${id} is off by ${errors.join(', ')} ms`);
}
