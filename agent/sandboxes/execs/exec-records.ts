import type { SandboxExecState, SandboxJournal } from '../../system/journal/sandbox-journal.ts';

/**
 * Writes the records of a sandbox's commands: to the host's journal and, where the sandbox may come
 * to another host, to where that one finds them. The two are written at the same time.
 */
export class ExecRecords {
  readonly #journal: Pick<SandboxJournal, 'durable' | 'saveExec'>;
  readonly #keep: ((row: SandboxExecState) => Promise<void>) | undefined;

  /** @param keep never fails: the journal counts */
  constructor(
    journal: Pick<SandboxJournal, 'durable' | 'saveExec'>,
    keep?: (row: SandboxExecState) => Promise<void>,
  ) {
    this.#journal = journal;
    this.#keep = keep;
  }

  /** Whether the records outlive this host. */
  get areKept(): boolean {
    return this.#keep !== undefined;
  }

  /** Resolves when the record of a command that is journalled outlives a crash. */
  async begun(row: SandboxExecState): Promise<void> {
    await Promise.all([this.#journal.durable(), this.#keep?.(row)]);
  }

  /** Writes the fields of a record that can change; durable when it returns. */
  async save(row: SandboxExecState): Promise<void> {
    await Promise.all([this.#journal.saveExec(row), this.#keep?.(row)]);
  }
}
