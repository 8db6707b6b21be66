import { all, type Database, run } from './sqlite.ts';

/** A disk that a sandbox of this host mounts, or is about to. */
export interface DiskHoldRow {
  readonly diskId: string;
  readonly sandboxId: string;
  readonly accountId: string;
}

type DiskHold = Pick<DiskHoldRow, 'diskId' | 'sandboxId'>;

/** The journal's table of held disks; every write is durable when its promise resolves. */
export class DiskHoldJournal {
  readonly #database: Database;

  constructor(database: Database) {
    this.#database = database;
  }

  /** Idempotent. */
  async add({ diskId, sandboxId, accountId }: DiskHoldRow): Promise<void> {
    await run(
      this.#database,
      'INSERT OR IGNORE INTO disk_holds (disk_id, sandbox_id, account_id) VALUES (?, ?, ?)',
      [diskId, sandboxId, accountId],
    );
  }

  async remove({ diskId, sandboxId }: DiskHold): Promise<void> {
    const sql = 'DELETE FROM disk_holds WHERE disk_id = ? AND sandbox_id = ?';
    await run(this.#database, sql, [diskId, sandboxId]);
  }

  /** Whether another sandbox has the disk. */
  async hasOthers({ diskId, sandboxId }: DiskHold): Promise<boolean> {
    const sql = 'SELECT 1 FROM disk_holds WHERE disk_id = ? AND sandbox_id <> ? LIMIT 1';
    return (await all(this.#database, sql, [diskId, sandboxId])).length > 0;
  }

  async list(): Promise<DiskHoldRow[]> {
    const rows = await all(this.#database, 'SELECT * FROM disk_holds ORDER BY disk_id, sandbox_id');
    return rows.map((row) => ({
      diskId: String(row['disk_id']),
      sandboxId: String(row['sandbox_id']),
      accountId: String(row['account_id']),
    }));
  }
}
