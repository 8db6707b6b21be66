import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ApiClient } from './api.ts';
import { sandboxPath } from './sandboxes.ts';

/* Calls that are repeated while Redis fails over, and what may be seen of each afterwards. */

/** An answer as the caller of a command was told. */
export interface Answer {
  readonly id: string;
  readonly code: string;
}

/** Runs a command that leaves its mark each time it runs, in the file `log` of the disk. */
export async function runMarked(api: ApiClient, diskId: string): Promise<Answer> {
  const id = randomBytes(6).toString('hex');
  const command = `echo ${id} >> log`;
  const { body } = await api.call('POST', `/api/disks/${diskId}/exec`, { command });
  return { id, code: body.success ? 'ok' : body.code };
}

/** The same in a sandbox. Its record says how a command ended that the caller lost sight of. */
export async function runMarkedIn(api: ApiClient, sandboxId: string): Promise<Answer> {
  const id = randomBytes(6).toString('hex');
  const command = `echo ${id} >> /root/log`;
  const { body } = await api.call('POST', `${sandboxPath(sandboxId)}/execs?wait=true`, { command });
  return { id, code: body.success ? 'ok' : body.code };
}

/** How often a command may have run, given its answer. */
const runsAllowed: Record<string, readonly [least: number, most: number]> = {
  ok: [1, 1],
  unavailable: [0, 0],
  outcome_unknown: [0, 1],
  timeout: [0, 1],
};

/** Keeps calling until told to stop. @returns all answers */
export async function repeat<T>(isOver: () => boolean, call: () => Promise<T>): Promise<T[]> {
  const answers: T[] = [];
  while (!isOver()) {
    answers.push(await call());
    await sleep(20);
  }
  return answers;
}

/** Compares the answers about commands with how often each ran. @returns the contradictions */
export function findLies(answers: readonly Answer[], log: string): string[] {
  const marks = log.trimEnd().split('\n');
  return answers.flatMap(({ id, code }) => {
    const runs = marks.filter((mark) => mark === id).length;
    const [least, most] = runsAllowed[code] ?? [1, 0];
    return runs >= least && runs <= most ? [] : [`${id} answered ${code}, ran ${runs} times`];
  });
}
