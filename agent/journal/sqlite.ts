import { type FileHandle, open as openFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import sqlite3 from 'sqlite3';
import { syncPath } from '../system/write-durably.ts';
import { GroupSync } from './group-sync.ts';

export interface Database {
  readonly sqlite: sqlite3.Database;
  /** The log that {@link shareSyncs} syncs, and what syncs it; until then each write does. */
  shared: { readonly log: FileHandle; readonly sync: GroupSync } | undefined;
}

export type Row = Record<string, string | number | null>;
export type Value = string | number | null;

const openAs = (path: string, mode: number): Promise<Database> =>
  new Promise((resolve, reject) => {
    const sqlite = new sqlite3.Database(path, mode, (error) =>
      error === null ? resolve({ sqlite, shared: undefined }) : reject(error),
    );
  });

export const open = (path: string): Promise<Database> =>
  openAs(path, sqlite3.OPEN_READWRITE | sqlite3.OPEN_CREATE);

/** @throws Error when there is no such file */
export const openToRead = (path: string): Promise<Database> => openAs(path, sqlite3.OPEN_READONLY);

/**
 * From now on, writes to a database in WAL mode that come at the same time are synced together.
 * SQLite itself syncs the log before it takes anything out of it.
 */
export async function shareSyncs(database: Database, path: string): Promise<void> {
  await exec(database, 'PRAGMA synchronous = NORMAL');
  const log = await openFile(`${path}-wal`, 'r');
  await syncPath(dirname(path)); // The log may be new.
  database.shared = { log, sync: new GroupSync(() => log.datasync()) };
}

/**
 * Runs one statement. Its effect outlives this process, and the host's next crash once
 * {@link durable} says so.
 * @throws Error of SQLite; once a sync has failed that sync's error, and nothing is written
 */
export async function commit(
  { sqlite, shared }: Database,
  sql: string,
  values: readonly Value[] = [],
): Promise<void> {
  shared?.sync.refuseIfFailed();
  await new Promise<void>((resolve, reject) => {
    sqlite.run(sql, values, (error: Error | null) => (error === null ? resolve() : reject(error)));
  });
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
