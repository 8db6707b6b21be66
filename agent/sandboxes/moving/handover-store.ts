import { join } from 'node:path';
import { errnoOf, toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import type { Ring } from '../../../shared/secrets.ts';
import type {
  SandboxExecRow,
  SandboxExecState,
  SandboxJournal,
  SandboxRow,
} from '../../system/journal/sandbox-journal.ts';
import type { OutputDirectory } from '../execs/exec-output.ts';
import { failpoint } from '../../system/failpoint.ts';
import { type HandoverRecord, readSandbox, writeSandbox } from './handover-record.ts';
import { HandedOverExecs, readExecs } from './handed-over-execs.ts';
import type { SharedStorage } from './shared-storage.ts';
import { isUnfinished, takenOverExec } from './taken-over-row.ts';
import { onSharedThread } from '../execs/shared-threads.ts';

export interface HandoverStoreDeps {
  readonly hostId: string;
  readonly storage: SharedStorage;
  readonly journal: SandboxJournal;
  /** 32 bytes each. */
  readonly encryptionKeys: Ring<Buffer>;
  readonly log: Logger;
}

/** The files of one sandbox of this host. */
interface HandoverFiles {
  readonly execs: HandedOverExecs;
  /**
   * Settles when the journal has what they have, so that this host may replace them, with whether
   * they have yet to be; undefined until the first try, and after a failure.
   */
  claimed: Promise<boolean> | undefined;
}

type Owner = Pick<SandboxRow, 'id' | 'vmId' | 'state' | 'revision'>;

/**
 * Keeps beside each machine of this host what its journal has of the sandbox, so that another host
 * can continue it, also when this one is gone (decision 0084).
 */
export class HandoverStore {
  readonly #deps: HandoverStoreDeps;
  /** By sandbox. */
  readonly #files = new Map<string, HandoverFiles>();

  constructor(deps: HandoverStoreDeps) {
    this.#deps = deps;
  }

  get storage(): SharedStorage {
    return this.#deps.storage;
  }

  /** Like {@link write}, but what fails is logged, since the journal alone tells what is true. */
  async save(row: SandboxRow): Promise<void> {
    if (row.uid < 0) return; // The sandbox waits for its image, and has no directory yet.
    try {
      await this.write(row);
    } catch (error) {
      const failed = { sandboxId: row.id, err: toError(error) };
      this.#deps.log.warn(failed, 'sandbox:keepFailed');
    }
  }

  /**
   * Saves the record of a command that begins or ends, so that a host which dies takes none along
   * that a caller was told of. Durable when it returns; what fails is logged.
   */
  async saveExec(sandbox: Owner, exec: SandboxExecState): Promise<void> {
    try {
      await this.#claimed(sandbox);
      await this.#filesOf(sandbox).execs.save(exec);
    } catch (error) {
      const failed = { sandboxId: sandbox.id, execId: exec.id, err: toError(error) };
      this.#deps.log.warn(failed, 'sandbox:keepExecFailed');
    }
  }

  /** Writes row and commands of a sandbox durably, the commands unless their file has them. */
  async write(row: SandboxRow): Promise<void> {
    const { hostId, storage, encryptionKeys } = this.#deps;
    const directory = storage.directoryOf(row.vmId);
    await this.#claimed(row);
    await this.#filesOf(row).execs.complete();
    await failpoint('keep sandbox', () => writeSandbox(directory, encryptionKeys, { hostId, row }));
  }

  /** Makes the files of a former owner this host's, which ends a takeover; what fails is logged. */
  async finishTakeover(row: SandboxRow): Promise<void> {
    try {
      if (await this.#claimed(row)) await this.write(row);
    } catch (error) {
      this.#deps.log.error({ sandboxId: row.id, err: toError(error) }, 'sandbox:claimFailed');
    }
  }

  /**
   * Reads the record in a machine's directory, this host's or another.
   * @throws Error when it is no host's
   */
  read(directory: string, vmId: string): Promise<HandoverRecord | undefined> {
    return readSandbox(directory, this.#deps.encryptionKeys, vmId);
  }

  /**
   * The commands kept beside a machine in this host's directory. Those that cannot be understood
   * are left behind.
   * @throws Error when they cannot be read now
   */
  async readExecs(row: Pick<SandboxRow, 'id' | 'vmId'>): Promise<SandboxExecRow[]> {
    const { storage, encryptionKeys, log } = this.#deps;
    try {
      return await readExecs(storage.directoryOf(row.vmId), encryptionKeys, row);
    } catch (error) {
      if (errnoOf(error) !== undefined) throw error;
      log.error({ sandboxId: row.id, err: toError(error) }, 'sandbox:takeExecsFailed');
      return [];
    }
  }

  /** Whether this host has taken the machine, or lost its journal, and has yet to continue it. */
  async isHandedOver(vmId: string): Promise<boolean> {
    const directory = this.storage.directoryOf(vmId);
    // Unreadable records stay, too: an operator may have to find the key that sealed it.
    return (await this.read(directory, vmId).catch(toError)) !== undefined;
  }

  /** The sandboxes that this host has released and nobody has taken over. */
  async released(): Promise<string[]> {
    const { hostId, storage } = this.#deps;
    const records = (await storage.list('released')).map((vmId) =>
      this.read(storage.directoryOf(vmId, 'released'), vmId).catch(() => undefined),
    );
    return (await Promise.all(records)).flatMap((each) =>
      each?.hostId === hostId ? [each.row.id] : [],
    );
  }

  /** Where the output of a sandbox's commands lies. */
  outputOf({ vmId }: Pick<SandboxRow, 'vmId'>): OutputDirectory {
    const directory = join(this.storage.directoryOf(vmId), 'output');
    return { directory, onThread: onSharedThread };
  }

  forget(sandboxId: string): void {
    this.#files.delete(sandboxId);
  }

  /**
   * Has the journal take in what a previous owner wrote, before this host first writes over it. A
   * failure fails that write, and the next one tries again.
   * @returns whether the files are still the former owner's, or are missing
   */
  #claimed(sandbox: Owner): Promise<boolean> {
    const files = this.#filesOf(sandbox);
    if (files.claimed !== undefined) return files.claimed;
    const claimed = this.#claim(sandbox);
    files.claimed = claimed;
    claimed.catch(() => (files.claimed = undefined));
    return claimed;
  }

  async #claim(sandbox: Owner): Promise<boolean> {
    const { storage, journal, log } = this.#deps;
    const directory = storage.directoryOf(sandbox.vmId);
    const record = await this.read(directory, sandbox.vmId).catch((error: unknown) => {
      if (errnoOf(error) !== undefined) throw error;
      log.error({ sandboxId: sandbox.id, err: toError(error) }, 'sandbox:claimUnreadable');
      return undefined;
    });
    if (record === undefined) return true;
    if (!isUnfinished(sandbox, record.row)) return false;
    const taken = (await this.readExecs(sandbox)).map((exec) => takenOverExec(exec, sandbox));
    await failpoint('journal taken execs', () => journal.addExecs(taken));
    return true;
  }

  #filesOf({ id, vmId }: Pick<SandboxRow, 'id' | 'vmId'>): HandoverFiles {
    const { storage, encryptionKeys, journal } = this.#deps;
    const known = this.#files.get(id);
    // A sandbox that takes a prewarmed machine gets that one's directory.
    if (known?.execs.vmId === vmId) return known;
    const directory = storage.directoryOf(vmId);
    const execs = new HandedOverExecs(directory, encryptionKeys, { id, vmId }, journal);
    const files: HandoverFiles = { execs, claimed: undefined };
    this.#files.set(id, files);
    return files;
  }
}
