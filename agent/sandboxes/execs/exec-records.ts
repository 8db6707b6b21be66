import type { SandboxExecState, SandboxJournal } from '../../system/journal/sandbox-journal.ts';

/**
 * Writes the records of a sandbox's commands: to the host's journal and, where the sandbox may come
 * to another host, to where that one finds them. The two are written at the same time.
 */
export class ExecRecords {
  readonly #journal: Pick<SandboxJournal, 'durable' | 'saveExec'>;
  readonly #handOver: ((row: SandboxExecState) => Promise<void>) | undefined;

  /** @param handOver never fails: the journal counts */
  constructor(
    journal: Pick<SandboxJournal, 'durable' | 'saveExec'>,
    handOver?: (row: SandboxExecState) => Promise<void>,
  ) {
    this.#journal = journal;
    this.#handOver = handOver;
  }

  /** Whether the records outlive this host. */
  get areHandedOver(): boolean {
    return this.#handOver !== undefined;
  }

  /** Resolves when the record of a command that is journalled outlives a crash. */
  async begun(row: SandboxExecState): Promise<void> {
    await Promise.all([this.#journal.durable(), this.#handOver?.(row)]);
  }

  /** Writes the fields of a record that can change; durable when it returns. */
  async save(row: SandboxExecState): Promise<void> {
    await Promise.all([this.#journal.saveExec(row), this.#handOver?.(row)]);
  }
}
