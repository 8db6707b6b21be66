import type { ProcessClient } from '../../agent/sandboxes/processes/attachment.ts';
import type {
  AttachedProcess,
  SandboxProcesses,
  AttachableSpec,
} from '../../agent/sandboxes/processes/sandbox-processes.ts';
import type { ProcessError } from '../../agent/sandboxes/processes/process-error.ts';
import type { ProcessExit } from '../../agent/sandboxes/processes/process-exit.ts';
import { waitFor } from './wait.ts';

/** A client that keeps everything and acknowledges at once. */
export class TestClient implements ProcessClient {
  processId = '';
  startedTimes = 0;
  readonly pieces: Buffer[] = [];
  cursor = 0;
  hasGap = false;
  /** All input before this offset was taken. */
  taken = 0;
  exit: ProcessExit | undefined;
  detachedBy: ProcessError | undefined;
  isDetached = false;
  process: AttachedProcess | undefined;

  constructor(offset = 0) {
    this.cursor = offset;
  }

  readonly started = (id: string): void => {
    this.processId = id;
    this.startedTimes += 1;
  };

  output({ offset, bytes }: { offset: number; bytes: Buffer }): void {
    this.hasGap ||= offset !== this.cursor;
    this.pieces.push(Buffer.from(bytes));
    this.cursor = offset + bytes.length;
    setImmediate(() => this.process?.acknowledge(this.cursor));
  }

  inputTaken(taken: number): void {
    this.taken = taken;
  }

  ended(exit: ProcessExit): void {
    this.exit = exit;
  }

  detached(error?: ProcessError): void {
    this.isDetached = true;
    this.detachedBy = error;
  }

  get bytes(): Buffer {
    return Buffer.concat(this.pieces);
  }
}

export const attachableSpec = (
  command: string,
  change: Partial<AttachableSpec> = {},
): AttachableSpec => ({
  ...{ command, environment: {}, directory: undefined, terminal: undefined, timeoutMs: undefined },
  ...change,
});

/** Starts a process with a client of its own. */
export async function startProcess(
  processes: SandboxProcesses,
  wanted: AttachableSpec,
): Promise<TestClient> {
  const client = new TestClient();
  client.process = await processes.start(wanted, client, client.started);
  return client;
}

/** Attaches a client that has everything before the offset. */
export async function attachClient(
  processes: SandboxProcesses,
  processId: string,
  offset: number,
): Promise<TestClient> {
  const client = new TestClient(offset);
  client.process = await processes.attach(processId, offset, client, () => undefined);
  return client;
}

export const exited = (client: TestClient): Promise<ProcessExit> =>
  waitFor('the exit', async () => client.exit);
