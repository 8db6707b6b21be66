import { readdir, readFile } from 'node:fs/promises';
import { AppError, errnoOf, toError } from '../../../shared/errors.ts';
import { DiskHoldJournal } from './disk-hold-journal.ts';
import { SandboxJournal } from './sandbox-journal.ts';
import { SnapshotJournal } from './snapshot-journal.ts';
import {
  all,
  close,
  commit,
  type Database,
  durable,
  emptyLog,
  exec,
  open,
  openToRead,
  retryRefused,
  run,
  shareSyncs,
} from './sqlite.ts';

/** An exec that has begun on this host and whose traces are not yet removed. */
export interface ExecIntent {
  readonly id: string;
  readonly accountId: string;
  readonly diskIds: readonly string[];
  readonly requestId: string;
  readonly begunAt: string;
}

const directory = new URL('.', import.meta.url);

const listMigrations = async (): Promise<string[]> =>
  (await readdir(directory)).filter((name) => name.endsWith('.sql')).sort();

async function countApplied(database: Database): Promise<number> {
  const [row] = await all(database, 'PRAGMA user_version');
  return Number(row?.['user_version'] ?? 0);
}

/** Applies the numbered .sql files that are new to this journal; `user_version` counts them. */
async function migrate(database: Database): Promise<void> {
  const files = await listMigrations();
  const applied = await countApplied(database);
  if (applied > files.length) {
    throw new Error(
      `the journal has version ${applied}, and this agent knows ${files.length} at most: it was written by a newer agent. Install that version again`,
    );
  }
  for (const [index, name] of files.entries()) {
    if (index < applied) continue;
    const sql = await readFile(new URL(name, directory), 'utf8');
    await exec(database, `BEGIN; ${sql}; PRAGMA user_version = ${index + 1}; COMMIT`);
  }
}

/**
 * The host's journal: the truth about what this agent has changed on the host. Every write is
 * durable when its promise resolves (WAL, one fsync for all that are committed meanwhile), but for
 * the beginnings of commands.
 */
export class Journal {
  readonly #database: Database;
  readonly sandboxes: SandboxJournal;
  readonly snapshots: SnapshotJournal;
  readonly diskHolds: DiskHoldJournal;

  private constructor(database: Database) {
    this.#database = database;
    this.sandboxes = new SandboxJournal(database);
    this.snapshots = new SnapshotJournal(database);
    this.diskHolds = new DiskHoldJournal(database);
  }

  /**
   * @param syncFailed told once, when a sync has failed: this journal refuses every write from then
   *   on, and only another process can go on with it
   */
  static async open(
    path: string,
    syncFailed: (error: Error) => void = () => undefined,
  ): Promise<Journal> {
    const database = await open(path);
    try {
      await exec(
        database,
        'PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON',
      );
      await migrate(database);
      await emptyLog(database);
      await shareSyncs(database, path, syncFailed);
      return new Journal(database);
    } catch (error) {
      await close(database); // Rolls back an open transaction.
      throw error;
    }
  }

  /**
   * Opens a read-only snapshot; the journal's agent may be running.
   * @throws Error when there is no journal, or its version differs from these sources
   */
  static async openToRead(path: string): Promise<Journal> {
    const database = await openToRead(path);
    try {
      await exec(database, 'BEGIN');
      const [known, applied] = [(await listMigrations()).length, await countApplied(database)];
      if (applied === known) return new Journal(database);
      throw new Error(`the journal has version ${applied}, these sources read version ${known}`);
    } catch (error) {
      await close(database);
      throw error;
    }
  }

  /**
   * Writes a command that is about to begin. The row outlives this agent, and the host's next crash
   * once {@link durable} says so: the crash would end the command, too.
   * @throws AppError `outcome_unknown` when this exec was begun before: a command never runs twice
   */
  async beginExec(intent: ExecIntent): Promise<void> {
    const { id, accountId, diskIds, requestId, begunAt } = intent;
    try {
      await commit(
        this.#database,
        'INSERT INTO execs (id, account_id, disk_ids, request_id, begun_at) VALUES (?, ?, ?, ?, ?)',
        [id, accountId, diskIds.join(' '), requestId, begunAt],
      );
    } catch (error) {
      if (errnoOf(error) !== 'SQLITE_CONSTRAINT') throw error;
      throw new AppError('outcome_unknown', 'the command was begun before', { cause: error });
    }
  }

  /** Resolves when everything that was written before is durable. @throws Error of the sync */
  durable(): Promise<void> {
    return durable(this.#database);
  }

  /**
   * Whether the storage takes writes, as far as they tell.
   * @throws Error from a write that it did not take until one that it does; not while it is only
   *   full
   */
  async check(): Promise<void> {
    try {
      await retryRefused(this.#database);
    } catch (cause) {
      throw new Error(`the journal cannot be written: ${toError(cause).message}`, { cause });
    }
  }

  async endExec(id: string): Promise<void> {
    await run(this.#database, 'DELETE FROM execs WHERE id = ?', [id]);
  }

  async execs(): Promise<ExecIntent[]> {
    const rows = await all(this.#database, 'SELECT * FROM execs ORDER BY begun_at');
    return rows.map((row) => ({
      id: String(row['id']),
      accountId: String(row['account_id']),
      diskIds: String(row['disk_ids']).split(' '),
      requestId: String(row['request_id']),
      begunAt: String(row['begun_at']),
    }));
  }

  async close(): Promise<void> {
    await close(this.#database);
  }
}

/**
 * Locks the data directory against a second agent. The kernel releases the lock with the process.
 * @throws Error while another agent holds it, or when it cannot be locked
 */
export async function holdLock(path: string): Promise<() => Promise<void>> {
  const database = await open(path);
  try {
    await exec(database, 'PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE');
  } catch (error) {
    await close(database);
    if (errnoOf(error) === 'SQLITE_BUSY')
      throw new Error('another agent runs on this data directory', { cause: error });
    throw new Error(`${path} cannot be locked: ${toError(error).message}`, { cause: error });
  }
  return () => close(database);
}
