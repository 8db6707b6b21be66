import { join } from 'node:path';
import { toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import type { Ring } from '../../../shared/secrets.ts';
import type { SandboxExecRow, SandboxJournal, SandboxRow } from '../../journal/sandbox-journal.ts';
import type { OutputPlace } from '../execs/exec-output.ts';
import { failpoint } from '../../system/failpoint.ts';
import { type CarriedSandbox, readSandbox, writeSandbox } from './carried-sandbox.ts';
import { KeptExecs, readExecs } from './kept-execs.ts';
import type { SharedStorage } from './shared-storage.ts';
import { onSharedThread } from '../execs/shared-threads.ts';

export interface SandboxCarrierDeps {
  readonly hostId: string;
  readonly storage: SharedStorage;
  readonly journal: SandboxJournal;
  /** 32 bytes each. */
  readonly encryptionKeys: Ring<Buffer>;
  readonly log: Logger;
}

/**
 * Keeps beside each machine of this host what its journal has of the sandbox, so that another host
 * can go on with it, also when this one is gone (decision 0084).
 */
export class SandboxCarrier {
  readonly #deps: SandboxCarrierDeps;
  /** By sandbox. */
  readonly #execs = new Map<string, KeptExecs>();

  constructor(deps: SandboxCarrierDeps) {
    this.#deps = deps;
  }

  get storage(): SharedStorage {
    return this.#deps.storage;
  }

  /** Like {@link write}, but what fails is logged, since the journal alone tells what is true. */
  async keep(row: SandboxRow): Promise<void> {
    if (row.uid < 0) return; // The sandbox waits for its image, and has no directory yet.
    try {
      await this.write(row);
    } catch (error) {
      const failed = { sandboxId: row.id, err: toError(error) };
      this.#deps.log.warn(failed, 'sandbox:keepFailed');
    }
  }

  /**
   * Keeps the record of a command that begins or ends, so that a host which dies takes none along that
   * a caller was told of. Durable when it returns; what fails is logged.
   */
  async keepExec(sandbox: Pick<SandboxRow, 'id' | 'vmId'>, exec: SandboxExecRow): Promise<void> {
    try {
      await this.#execsOf(sandbox).keep(exec);
    } catch (error) {
      const failed = { sandboxId: sandbox.id, execId: exec.id, err: toError(error) };
      this.#deps.log.warn(failed, 'sandbox:keepExecFailed');
    }
  }

  /** Writes row and commands of a sandbox durably, the commands unless they are kept. */
  async write(row: SandboxRow): Promise<void> {
    const { hostId, storage, encryptionKeys } = this.#deps;
    const directory = storage.directoryOf(row.vmId);
    await this.#execsOf(row).complete();
    await failpoint('keep sandbox', () => writeSandbox(directory, encryptionKeys, { hostId, row }));
  }

  /**
   * Reads the record in a machine's directory, this host's or another.
   * @throws Error when it is no host's
   */
  read(directory: string, vmId: string): Promise<CarriedSandbox | undefined> {
    return readSandbox(directory, this.#deps.encryptionKeys, vmId);
  }

  readExecs(
    directory: string,
    row: { readonly id: string; readonly vmId: string },
  ): Promise<SandboxExecRow[]> {
    return readExecs(directory, this.#deps.encryptionKeys, row);
  }

  /** Whether this host has taken the machine, or lost its journal, and has yet to go on with it. */
  async isCarried(vmId: string): Promise<boolean> {
    const directory = this.storage.directoryOf(vmId);
    // Unreadable records stay, too: an operator may have to find the key that sealed it.
    return (await this.read(directory, vmId).catch(toError)) !== undefined;
  }

  /** The sandboxes that this host has given up and nobody has taken. */
  async released(): Promise<string[]> {
    const { hostId, storage } = this.#deps;
    const carried = (await storage.list('released')).map((vmId) =>
      this.read(storage.directoryOf(vmId, 'released'), vmId).catch(() => undefined),
    );
    return (await Promise.all(carried)).flatMap((each) =>
      each?.hostId === hostId ? [each.row.id] : [],
    );
  }

  /** Where the output of a sandbox's commands lies. */
  outputOf({ vmId }: Pick<SandboxRow, 'vmId'>): OutputPlace {
    const directory = join(this.storage.directoryOf(vmId), 'output');
    return { directory, onThread: onSharedThread };
  }

  forget(sandboxId: string): void {
    this.#execs.delete(sandboxId);
  }

  #execsOf({ id, vmId }: Pick<SandboxRow, 'id' | 'vmId'>): KeptExecs {
    const { storage, encryptionKeys, journal } = this.#deps;
    const known = this.#execs.get(id);
    // A sandbox that takes a prewarmed machine gets that one's directory.
    if (known?.vmId === vmId) return known;
    const directory = storage.directoryOf(vmId);
    const execs = new KeptExecs(directory, encryptionKeys, { id, vmId }, journal);
    this.#execs.set(id, execs);
    return execs;
  }
}
