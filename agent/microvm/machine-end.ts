import { readFile } from 'node:fs/promises';
import { constants } from 'node:os';
import { join } from 'node:path';
import Type from 'typebox';
import { errnoOf } from '../../shared/errors.ts';
import { compile } from '../../shared/validate.ts';
import { writeDurably } from '../system/write-durably.ts';
import type { MachineEnd } from '../sandboxes/machine-driver.ts';
import { type MachineExit, readConsole, readExit } from './qemu/shim.ts';
import { parseJson } from '../../shared/json.ts';

const CONSOLE_LENGTH_MAX = 600;
const SIGKILL = constants.signals.SIGKILL;

/** What a guest did by itself, and its monitor told. */
const Observed = Type.Object({ reason: Type.Enum(['guest_shutdown', 'guest_panic']) });
export type Observed = Type.Static<typeof Observed>['reason'];

/** What the agent did to end a machine. */
export type Intent = { readonly kind: 'stop' | 'kill'; readonly forcedAfterMs?: number };

const NAME = 'end.json';
const parse = compile(Observed);

/** Before QEMU is told to quit, which leaves no trace of why. */
export const rememberObserved = (runDir: string, reason: Observed): Promise<void> =>
  writeDurably(runDir, NAME, JSON.stringify({ reason }));

async function recallObserved(runDir: string): Promise<Observed | undefined> {
  try {
    return parse(parseJson(await readFile(join(runDir, NAME), 'utf8')), NAME).reason;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

const signalName = (number: number): string =>
  Object.entries(constants.signals).find(([, value]) => value === number)?.[0] ??
  `signal ${number}`;

function describeExit({ code, signal, oomKills }: MachineExit): MachineEnd {
  if (signal === SIGKILL && oomKills > 0) {
    const message = 'the virtual machine was killed because its memory limit was reached';
    return { reason: 'out_of_memory', message };
  }
  const how = signal === undefined ? `exit code ${code ?? 'unknown'}` : signalName(signal);
  return { reason: 'vmm_crashed', message: `the virtual machine's process ended with ${how}` };
}

function withoutExit(): MachineEnd {
  const message = "the virtual machine's process ended, and what watched over it too";
  return { reason: 'vmm_crashed', message };
}

const forced = ({ forcedAfterMs }: Intent): MachineEnd => ({
  reason: 'stop_forced',
  message:
    forcedAfterMs === undefined
      ? 'the virtual machine was killed'
      : `the guest did not shut down within ${forcedAfterMs} ms and was killed`,
});

/** The first cause counts: what the guest did, then what the agent did, then how QEMU ended. */
function firstCause(
  observed: Observed | undefined,
  intent: Intent | undefined,
  exit: MachineExit | undefined,
): MachineEnd {
  if (observed === 'guest_panic') return { reason: observed, message: "the guest's kernel failed" };
  if (observed === 'guest_shutdown') {
    return intent === undefined
      ? { reason: observed, message: 'the guest shut down by itself' }
      : { reason: 'stopped', message: 'the guest shut down as asked' };
  }
  if (intent?.kind === 'kill' || intent?.forcedAfterMs !== undefined) return forced(intent);
  return exit === undefined ? withoutExit() : describeExit(exit);
}

/** Of a failed kernel the line that says why, of QEMU the last ones. */
async function whatWasPrinted(runDir: string, reason: MachineEnd['reason']): Promise<string> {
  const lines = await readConsole(runDir);
  const panic = lines.findLast((line) => line.includes('Kernel panic'));
  if (reason === 'guest_panic' && panic !== undefined) return panic.slice(0, CONSOLE_LENGTH_MAX);
  return lines.join(' | ').slice(-CONSOLE_LENGTH_MAX);
}

/** How a machine ended of which nothing runs any more. */
export async function howItEnded(runDir: string, intent: Intent | undefined): Promise<MachineEnd> {
  const [observed, exit] = await Promise.all([recallObserved(runDir), readExit(runDir)]);
  const { reason, message } = firstCause(observed, intent, exit);
  if (reason !== 'vmm_crashed' && reason !== 'guest_panic') return { reason, message };
  const printed = await whatWasPrinted(runDir, reason);
  return { reason, message: printed === '' ? message : `${message}: ${printed}` };
}

/** Whether anybody saw the end. */
export const isEndKnown = async (runDir: string): Promise<boolean> =>
  (await recallObserved(runDir)) !== undefined || (await readExit(runDir)) !== undefined;
