import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { toError } from '../../../shared/errors.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import type { SandboxProcess } from '../../../shared/schemas/sandbox-process.ts';
import type { Logger } from '../../../shared/log.ts';
import type { GuestChannel } from '../../machines/guest-link/guest-channel.ts';
import type { GuestLink } from '../../machines/guest-link/guest-link.ts';
import {
  type GuestProcessRecord,
  PROCESS_FLAGS,
} from '../../machines/guest-link/guest-protocol.ts';
import { failpoint } from '../../system/failpoint.ts';
import { SandboxFiles } from '../files/sandbox-files.ts';
import { Attachment, type ProcessClient } from './attachment.ts';
import type { InputPosition, WaitingInput } from './process-input.ts';
import {
  guestSilent,
  processNotFound,
  sandboxNotRunning,
  ProcessError,
  toProcessError,
} from './process-error.ts';
import { presentProcesses } from './list-processes.ts';
import type { ProcessExit } from './process-exit.ts';
import { AttachableProcess } from './attachable-process.ts';
import { whenThawed } from '../../machines/guest-link/when-thawed.ts';

/** A client's request to start a process. */
export interface AttachableSpec {
  /** Chosen by the client, so that a start that is repeated does not start it again. */
  readonly id?: string | undefined;
  readonly command: string;
  readonly environment: Readonly<Record<string, string>>;
  /** The sandbox's own when undefined. */
  readonly directory: string | undefined;
  /** Undefined: pipes. */
  readonly terminal: { readonly columns: number; readonly rows: number } | undefined;
  readonly timeoutMs: number | undefined;
}

/** A client's hold on a process. */
export interface AttachedProcess {
  /** Everything before the offset has left the host for this client. */
  acknowledge(offset: number): void;
  /** How much input the process has taken, and where input goes on. */
  readonly input: { readonly taken: number; readonly end: number };
  /** See `ProcessInput.write`. @throws ProcessError `no_capacity`, `input_conflict` */
  write(bytes: Buffer, position?: InputPosition): Promise<void>;
  /** End of file after everything that was written before; nothing for a terminal. */
  closeInput(): Promise<void>;
  /** The client leaves, the process runs on. */
  detach(): void;
}

export interface SandboxProcessesOptions {
  readonly sandboxId: string;
  /** How many clients may be attached at the same time. */
  readonly attachedMax: number;
  readonly log: Logger;
}

/** How clients use the sandbox (lifecycle/sandbox-uses.ts), and what they find in it. */
interface Use {
  /** A client is attached until the returned function is called. */
  attachedClient(): () => void;
  /** A request for files lasts until the returned function is called. */
  fileRequest(): () => void;
  /** A client writes to a process. */
  input(): void;
  /** Variables that processes get unless their own are of the same name. */
  environment(): Readonly<Record<string, string>>;
}

/** The processes that clients start in one sandbox and attach to. They belong to the guest. */
export class SandboxProcesses {
  /** Its files are within reach exactly while its processes are. */
  readonly files = new SandboxFiles();
  readonly #options: SandboxProcessesOptions;
  readonly #processes = new Map<string, AttachableProcess>();
  /** Called when a process that the guest was asked to start is known to run. */
  readonly #starting = new Map<string, () => void>();
  #link: GuestLink | undefined;
  #isListed = false;
  #isRefusing = false;
  readonly #waitingInput: WaitingInput;
  #attached = 0;
  #use: Use = {
    attachedClient: () => () => undefined,
    fileRequest: () => () => undefined,
    input: () => undefined,
    environment: () => ({}),
  };

  constructor(options: SandboxProcessesOptions) {
    this.#options = options;
    // All that clients may have under way; the rest is what clients that left have left behind.
    const { inputWaitingBytesMax, inputLeftBytesMax } = SANDBOX_LIMITS;
    const bytesMax = options.attachedMax * inputWaitingBytesMax + inputLeftBytesMax;
    this.#waitingInput = { bytes: 0, bytesMax };
  }

  useBy(use: Use): void {
    this.#use = use;
    this.files.holdBy(() => use.fileRequest());
  }

  /** Every channel of this guest from now on takes its processes up. */
  connect(link: GuestLink): void {
    this.#link = link;
    this.#isListed = false;
    this.#isRefusing = false;
    const opened = (channel: GuestChannel, processes: readonly GuestProcessRecord[]): void => {
      if (this.#link === link) this.#adopt(channel, processes);
    };
    link.on('opened', opened);
    if (link.channel !== undefined) opened(link.channel, link.processes);
    this.files.connect(link);
  }

  /**
   * Starts a process with its first client, or attaches the client to the process that an earlier
   * call has started under the same id.
   * @param started told its id before anything else of it
   * @throws ProcessError
   */
  async start(
    { id: wantedId, ...spec }: AttachableSpec,
    client: ProcessClient,
    started: (processId: string) => void,
  ): Promise<AttachedProcess> {
    if (wantedId !== undefined) await this.#listed();
    const id = wantedId ?? randomUUID();
    if (this.#starting.has(id)) throw guestSilent();
    if (this.#processes.has(id)) return this.attach(id, 0, client, () => started(id));
    const attachment = new Attachment(client, 0, this.#takePermit());
    const process = new AttachableProcess(id, this.#waitingInput, { command: spec.command });
    process.attachFirst(attachment);
    this.#processes.set(process.id, process);
    this.#starting.set(process.id, () => started(process.id));
    try {
      await failpoint('start process', () => this.#start(process, spec));
    } catch (error) {
      this.#processes.delete(process.id);
      attachment.release();
      throw error;
    } finally {
      this.#starting.delete(process.id);
    }
    return this.#handleOf(process, attachment);
  }

  /**
   * @param offset of the first byte of output that the client wants
   * @param attached called before anything is told of it
   * @throws ProcessError
   */
  async attach(
    id: string,
    offset: number,
    client: ProcessClient,
    attached: () => void,
  ): Promise<AttachedProcess> {
    const attachment = new Attachment(client, offset, this.#takePermit());
    try {
      const process = await this.#find(id);
      attached();
      process.attach(attachment);
      return this.#handleOf(process, attachment);
    } catch (error) {
      attachment.release();
      throw error;
    }
  }

  /** Those that run, and those that have ended within the last minutes. @throws ProcessError */
  async list(): Promise<SandboxProcess[]> {
    if (this.#isRefusing) throw sandboxNotRunning();
    let records: readonly GuestProcessRecord[] = [];
    await this.#ask(async (channel) => {
      records = await channel.list();
    });
    return presentProcesses(records, this.#processes);
  }

  /** Ends the process and its group. Nothing happens when it has ended. @throws ProcessError */
  async kill(id: string): Promise<void> {
    await this.#find(id);
    await this.#ask((channel) => channel.kill(id));
  }

  /** @throws ProcessError `invalid_request` when it has no terminal */
  async resize(id: string, columns: number, rows: number): Promise<void> {
    await this.#find(id);
    await this.#ask((channel) => channel.resize(id, columns, rows));
  }

  /** The sandbox is about to stop, and what runs in it with it. */
  expectStop(why: string): void {
    for (const process of this.#processes.values()) process.expectEnd(why);
    this.files.release(why);
  }

  /** Sends all clients away, and those that come, until `acceptAgain` or `connect`. */
  releaseClients(error?: ProcessError): void {
    this.#isRefusing = true;
    for (const process of this.#processes.values()) process.releaseClients(error);
    this.files.release('the sandbox is paused');
  }

  /** After `releaseClients`, when the sandbox runs on. */
  acceptAgain(): void {
    this.#isRefusing = false;
    for (const process of this.#processes.values()) process.runOn();
    this.files.acceptAgain();
  }

  /** The machine is gone: what ran in it has ended. */
  loseAll(status: ProcessExit['status'], reason: string): void {
    this.#link = undefined;
    for (const process of this.#processes.values()) {
      // A process that was not reported as started has no exit to report.
      if (this.#starting.has(process.id)) process.leave(sandboxNotRunning());
      else process.lose(status, reason);
    }
    this.#processes.clear();
    this.files.disconnect();
  }

  /** The machine rests, or runs on without this agent: its processes are found again later. */
  disconnect(error?: ProcessError): void {
    this.#link = undefined;
    this.#isRefusing = true;
    for (const process of this.#processes.values()) process.leave(error);
    this.#processes.clear();
    this.files.disconnect();
  }

  async #start(process: AttachableProcess, spec: Omit<AttachableSpec, 'id'>): Promise<void> {
    const { id } = process;
    const streams = { stdin: true, isFollowed: true, isAttachable: true, user: '' };
    const environment = { ...this.#use.environment(), ...spec.environment };
    const guestSpec = { id, ...spec, environment, directory: spec.directory ?? '', ...streams };
    await this.#ask(async (channel) => {
      // A channel broke before its answer came, and the next one has listed the process.
      if (!this.#starting.has(id)) return;
      if (this.#isRefusing) throw sandboxNotRunning();
      await channel.start(guestSpec, () => {
        this.#tellStarted(id);
        if (this.#processes.get(id) === process) return process.begin(channel);
        // The answer came so late that its client was told that it did not start.
        channel.kill(id).catch(() => undefined);
      });
    });
  }

  #tellStarted(id: string): void {
    const started = this.#starting.get(id);
    this.#starting.delete(id);
    started?.();
  }

  #handleOf(process: AttachableProcess, attachment: Attachment): AttachedProcess {
    return {
      acknowledge: (offset) => process.acknowledge(attachment, offset),
      get input() {
        return { taken: process.inputTaken, end: process.input.acceptedEnd };
      },
      write: async (bytes, position) => {
        this.#use.input();
        await process.input.write(bytes, position);
      },
      closeInput: () => process.input.close(),
      detach: () => process.detach(attachment),
    };
  }

  #takePermit(): () => void {
    if (this.#link === undefined || this.#isRefusing) throw sandboxNotRunning();
    const { attachedMax } = this.#options;
    if (this.#attached >= attachedMax) {
      const message = `${attachedMax} clients are attached, as many as the sandbox may have`;
      throw new ProcessError('max_concurrent_execs_reached', message);
    }
    this.#attached += 1;
    const letIdle = this.#use.attachedClient();
    let isHeld = true;
    return () => {
      if (!isHeld) return;
      isHeld = false;
      this.#attached -= 1;
      letIdle();
    };
  }

  /** Waits for the guest's list when this agent has just found the machine. */
  async #listed(): Promise<void> {
    if (this.#link === undefined || this.#isRefusing) throw sandboxNotRunning();
    if (this.#isListed) return;
    const late = AbortSignal.timeout(SANDBOX_LIMITS.guestAnswerMsMax);
    const signal = AbortSignal.any([late, this.#link.closed]);
    await once(this.#link, 'opened', { signal }).catch(() => {
      throw guestSilent();
    });
  }

  async #find(id: string): Promise<AttachableProcess> {
    await this.#listed();
    const process = this.#processes.get(id);
    if (process === undefined) throw processNotFound();
    return process;
  }

  /** @throws ProcessError for what the guest refuses, or when it does not answer in time */
  async #ask(request: (channel: GuestChannel) => Promise<unknown>): Promise<void> {
    const link = this.#link;
    if (link === undefined) throw sandboxNotRunning();
    const signal = AbortSignal.timeout(SANDBOX_LIMITS.guestAnswerMsMax);
    try {
      await link.call(signal, async (channel) => {
        await whenThawed(() => request(channel), signal);
      });
    } catch (error) {
      const told = toProcessError(error);
      if (told !== error && this.#link === undefined) throw sandboxNotRunning();
      const { log, sandboxId } = this.#options;
      if (told.code === 'internal_error') {
        log.warn({ sandboxId, err: toError(error) }, 'session:guestSilent');
      }
      throw told;
    }
  }

  #adopt(channel: GuestChannel, records: readonly GuestProcessRecord[]): void {
    this.#listen(channel);
    const known = new Set<string>();
    for (const record of records) {
      if ((record.flags & PROCESS_FLAGS.session) === 0) continue;
      known.add(record.id);
      const process =
        this.#processes.get(record.id) ??
        new AttachableProcess(record.id, this.#waitingInput, { received: record.stdinReceived });
      this.#processes.set(record.id, process);
      this.#tellStarted(record.id);
      process.adopt(channel, record);
    }
    for (const [id, process] of this.#processes) {
      if (known.has(id) || this.#starting.has(id)) continue;
      this.#processes.delete(id);
      process.lose('failed', 'the sandbox does not know the process any more');
    }
    this.#isListed = true;
  }

  #listen(channel: GuestChannel): void {
    channel.on('output', ({ processId, ...piece }) => {
      this.#processes.get(processId)?.receiveOutput(channel, piece);
    });
    channel.on('taken', (processId, offset) => {
      this.#processes.get(processId)?.receiveTaken(offset);
    });
    channel.on('exited', ({ processId, ...end }) => {
      this.#processes.get(processId)?.receiveEnd(end);
    });
    // The guest shuts itself down; when it was asked to, the sandbox has said so before.
    channel.on('poweringOff', (isRequested) => {
      if (!isRequested) this.expectStop('sandbox ended');
    });
    channel.on('evicted', (processId) => {
      this.#processes.get(processId)?.evict();
      this.#processes.delete(processId);
    });
  }
}
