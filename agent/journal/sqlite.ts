import sqlite3 from 'sqlite3';

export type Database = sqlite3.Database;
export type Row = Record<string, string | number | null>;
export type Value = string | number | null;

const openAs = (path: string, mode: number): Promise<Database> =>
  new Promise((resolve, reject) => {
    const database = new sqlite3.Database(path, mode, (error) =>
      error === null ? resolve(database) : reject(error),
    );
  });

export const open = (path: string): Promise<Database> =>
  openAs(path, sqlite3.OPEN_READWRITE | sqlite3.OPEN_CREATE);

/** @throws Error when there is no such file */
export const openToRead = (path: string): Promise<Database> => openAs(path, sqlite3.OPEN_READONLY);

/** Runs one statement. */
export const run = (
  database: Database,
  sql: string,
  values: readonly Value[] = [],
): Promise<void> =>
  new Promise((resolve, reject) => {
    database.run(sql, values, (error: Error | null) =>
      error === null ? resolve() : reject(error),
    );
  });

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
export const exec = (database: Database, sql: string): Promise<void> =>
  new Promise((resolve, reject) => {
    database.exec(sql, (error) => (error === null ? resolve() : reject(error)));
  });

export const all = (
  database: Database,
  sql: string,
  values: readonly Value[] = [],
): Promise<Row[]> =>
  new Promise((resolve, reject) => {
    database.all(sql, values, (error: Error | null, rows: Row[]) =>
      error === null ? resolve(rows) : reject(error),
    );
  });

export const close = (database: Database): Promise<void> =>
  new Promise((resolve, reject) => {
    database.close((error) => (error === null ? resolve() : reject(error)));
  });
