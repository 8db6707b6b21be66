/** Stops this checkout's stack, or the processes that a killed supervisor left running. */
import { endProcess } from '../shared/process-id.ts';
import { readStackState } from './stack-state.ts';
import { claimCheckout, endLeftovers, STOP_WITHIN_MS } from './supervisor.ts';

const say = (line: string) => console.log(`berth: ${line}`);

const { state, isRunning } = await readStackState();
try {
  if (state === undefined) {
    say('not running');
  } else if (isRunning) {
    say('stopping');
    await endProcess(state.supervisor, { withinMs: STOP_WITHIN_MS });
  }
  if (state !== undefined) {
    await claimCheckout();
    await endLeftovers(say);
    say('stopped');
  }
} catch (error) {
  console.error(`berth: ${error instanceof Error ? error.message : String(error)}`);
  process.exitCode = 1;
}
