import { join } from 'node:path';
import { toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import type { Ring } from '../../../shared/secrets.ts';
import type { SandboxExecRow, SandboxJournal, SandboxRow } from '../../journal/sandbox-journal.ts';
import { failpoint } from '../../system/failpoint.ts';
import {
  type CarriedSandbox,
  readExecs,
  readSandbox,
  writeExecs,
  writeSandbox,
} from './carried-sandbox.ts';
import type { SharedStorage } from './shared-storage.ts';

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
  /** Which commands are written, by sandbox. */
  readonly #execVersions = new Map<string, string>();

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

  /** Writes row and commands of a sandbox durably, the commands if there are others. */
  async write(row: SandboxRow): Promise<void> {
    const { hostId, storage, journal, encryptionKeys } = this.#deps;
    const directory = storage.directoryOf(row.vmId);
    const version = await journal.execsVersion(row.id);
    if (this.#execVersions.get(row.id) !== version) {
      const execs = await journal.execsOf(row.id);
      await failpoint('keep execs', () => writeExecs(directory, encryptionKeys, row.vmId, execs));
      this.#execVersions.set(row.id, version);
    }
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
  outputOf({ vmId }: Pick<SandboxRow, 'vmId'>): string {
    return join(this.storage.directoryOf(vmId), 'output');
  }

  forget(sandboxId: string): void {
    this.#execVersions.delete(sandboxId);
  }
}
