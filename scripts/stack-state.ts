import { mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { readFileIfExists } from './env-file.ts';
import { paths } from './local-paths.ts';
import { isAlive, type ProcessId } from '../shared/process-id.ts';

/** The supervisor's record of itself and its processes in this checkout. */
export interface StackState {
  readonly supervisor: ProcessId;
  readonly ready: boolean;
  /** In the order in which they were started. */
  readonly processes: readonly (readonly [name: string, id: ProcessId])[];
}

export async function readStackState(): Promise<{
  readonly state: StackState | undefined;
  readonly isRunning: boolean;
}> {
  const text = await readFileIfExists(paths.stackState);
  if (text === undefined) return { state: undefined, isRunning: false };
  const [supervisor = '', ready, ...processes] = text.trimEnd().split('\n');
  const state = {
    supervisor: parseId(supervisor),
    ready: ready === 'ready',
    processes: processes.map((line) => {
      const [name = '', id = ''] = line.split(' ');
      return [name, parseId(id)] as const;
    }),
  };
  return { state, isRunning: isAlive(state.supervisor) };
}

// Synchronous, so that no process is started before it is recorded.
export function writeStackState(state: StackState): void {
  const lines = [
    formatId(state.supervisor),
    state.ready ? 'ready' : 'starting',
    ...state.processes.map(([name, id]) => `${name} ${formatId(id)}`),
  ];
  mkdirSync(dirname(paths.stackState), { recursive: true });
  const temporary = `${paths.stackState}.${process.pid}`;
  writeFileSync(temporary, `${lines.join('\n')}\n`, { mode: 0o600 });
  renameSync(temporary, paths.stackState);
}

export function removeStackState(): void {
  rmSync(paths.stackState, { force: true });
}

function formatId({ pid, startTime }: ProcessId): string {
  return `${pid}@${startTime}`;
}

function parseId(text: string): ProcessId {
  const at = text.indexOf('@');
  return { pid: Number(text.slice(0, at)), startTime: text.slice(at + 1) };
}
