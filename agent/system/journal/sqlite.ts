import { type FileHandle, open as openFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import sqlite3 from 'sqlite3';
import { errnoOf, ignoring, toError } from '../../../shared/errors.ts';
import { syncPath } from '../write-durably.ts';
import { GroupSync } from './group-sync.ts';

export interface Database {
  readonly sqlite: sqlite3.Database;
  /** The log that {@link shareSyncs} syncs, and what syncs it; until then each write does. */
  shared: { readonly log: FileHandle; readonly sync: GroupSync } | undefined;
  /** Why the storage did not take the last write; undefined also while it is only full. */
  refusal: Error | undefined;
}

export type Row = Record<string, string | number | null>;
export type Value = string | number | null;

/** The storage fails or is read-only; a full one is told by each write that it cannot take. */
const REFUSALS = /^SQLITE_(?:IOERR|READONLY|CANTOPEN)$/u;

const openAs = (path: string, mode: number): Promise<Database> =>
  new Promise((resolve, reject) => {
    const sqlite = new sqlite3.Database(path, mode, (error) =>
      error === null ? resolve({ sqlite, shared: undefined, refusal: undefined }) : reject(error),
    );
  });

export const open = (path: string): Promise<Database> =>
  openAs(path, sqlite3.OPEN_READWRITE | sqlite3.OPEN_CREATE);

/** @throws Error when there is no such file */
export const openToRead = (path: string): Promise<Database> => openAs(path, sqlite3.OPEN_READONLY);

/**
 * Writes everything in the log of a database in WAL mode durably to the database, and empties the
 * log. A former process may have been unable to sync the log, and nothing written behind such a gap
 * would be durable. On full storage the log stays.
 */
export async function emptyLog(database: Database): Promise<void> {
  try {
    await exec(database, 'PRAGMA wal_checkpoint(TRUNCATE)');
  } catch (error) {
    ignoring('SQLITE_FULL')(error);
  }
}

/**
 * From now on, writes to a database in WAL mode that come at the same time are synced together.
 * SQLite itself syncs the log before it takes anything out of it.
 * @param failed told once, when a sync has failed: everything is refused from then on
 */
export async function shareSyncs(
  database: Database,
  path: string,
  failed: (error: Error) => void,
): Promise<void> {
  await exec(database, 'PRAGMA synchronous = NORMAL');
  const log = await openFile(`${path}-wal`, 'r');
  await syncPath(dirname(path)); // The log may be new.
  database.shared = { log, sync: new GroupSync(() => log.datasync(), failed) };
}

/**
 * Runs one statement. Its effect outlives this process, and the host's next crash once
 * {@link durable} says so.
 * @throws Error of SQLite; once a sync has failed that sync's error, and nothing is written
 */
export async function commit(
  database: Database,
  sql: string,
  values: readonly Value[] = [],
): Promise<void> {
  const { sqlite, shared } = database;
  shared?.sync.refuseIfFailed();
  try {
    await new Promise<void>((resolve, reject) => {
      sqlite.run(sql, values, (error: Error | null) =>
        error === null ? resolve() : reject(error),
      );
    });
  } catch (error) {
    if (REFUSALS.test(errnoOf(error) ?? '')) database.refusal = toError(error);
    throw error;
  }
  database.refusal = undefined;
}

/**
 * After a write that the storage did not take, tries one that changes nothing.
 * @throws Error of SQLite when the storage still does not take it
 */
export async function retryRefused(database: Database): Promise<void> {
  if (database.refusal === undefined) return;
  const [row] = await all(database, 'PRAGMA user_version');
  await run(database, `PRAGMA user_version = ${Number(row?.['user_version'])}`);
}

/** Resolves when everything that was committed before is durable. */
export const durable = async ({ shared }: Database): Promise<void> => shared?.sync.durable();

/** Runs one statement and makes its effect durable. */
export async function run(
  database: Database,
  sql: string,
  values: readonly Value[] = [],
): Promise<void> {
  await commit(database, sql, values);
  await durable(database);
}

/** A table whose rows are written whole and found by the column `id`, the first of its columns. */
export interface RowTable {
  readonly name: string;
  readonly columns: readonly string[];
}

const marksOf = ({ columns }: RowTable): string => columns.map(() => '?').join(', ');

/** @param values one for each column */
export const insertRow = (
  database: Database,
  table: RowTable,
  values: readonly Value[],
): Promise<void> => {
  const { name, columns } = table;
  const into = `INSERT INTO ${name} (${columns.join(', ')})`;
  return run(database, `${into} VALUES (${marksOf(table)})`, values);
};

/** Writes a row that is there. @param values one for each column */
export const saveRow = (
  database: Database,
  table: RowTable,
  values: readonly Value[],
): Promise<void> => {
  const { name, columns } = table;
  const set = `UPDATE ${name} SET (${columns.join(', ')}) = (${marksOf(table)})`;
  return run(database, `${set} WHERE id = ?`, [...values, values[0] ?? null]);
};

/** Runs several statements. */
export const exec = ({ sqlite }: Database, sql: string): Promise<void> =>
  new Promise((resolve, reject) => {
    sqlite.exec(sql, (error) => (error === null ? resolve() : reject(error)));
  });

export const all = (
  { sqlite }: Database,
  sql: string,
  values: readonly Value[] = [],
): Promise<Row[]> =>
  new Promise((resolve, reject) => {
    sqlite.all(sql, values, (error: Error | null, rows: Row[]) =>
      error === null ? resolve(rows) : reject(error),
    );
  });

export async function close({ sqlite, shared }: Database): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    sqlite.close((error) => (error === null ? resolve() : reject(error)));
  });
  await shared?.log.close();
}
