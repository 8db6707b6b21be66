/** Ends with 0 when something of this checkout's stack runs, started by hand or left by a kill. */
import { isAlive } from '../shared/process-id.ts';
import { readStackState } from './stack-state.ts';

const { state, isRunning } = await readStackState();
const isLeft = state?.processes.some(([, id]) => isAlive(id)) ?? false;
process.exitCode = isRunning || isLeft ? 0 : 1;
