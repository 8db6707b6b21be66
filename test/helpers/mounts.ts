import type { ApiClient } from './api.ts';
import { outputOf } from './sandboxes.ts';

/**
 * Tries to lock a file without waiting: `lockf` or `flock` of Python's fcntl, which every image of
 * the tests has. Prints `got` or `no`, and keeps the lock for a while.
 */
export const tryLock = (kind: 'lockf' | 'flock', path: string, seconds = 0): string =>
  [
    `python3 - <<'END'`,
    'import fcntl, time',
    `file = open('${path}', 'a+')`,
    'try:',
    `    fcntl.${kind}(file, fcntl.LOCK_EX | fcntl.LOCK_NB)`,
    `    print('got', flush=True)`,
    'except OSError:',
    `    print('no', flush=True)`,
    `time.sleep(${seconds})`,
    'END',
  ].join('\n');

/** Appends to an SQLite table many times, each in a transaction of its own. @returns the command */
export const insertRows = (database: string, writer: string, rows: number): string =>
  [
    `python3 - <<'END'`,
    'import sqlite3',
    `database = sqlite3.connect('${database}', timeout=60, isolation_level=None)`,
    `database.execute('create table if not exists rows (writer text, number integer)')`,
    `for number in range(${rows}):`,
    `    database.execute('begin immediate')`,
    `    database.execute('insert into rows values (?, ?)', ('${writer}', number))`,
    `    database.execute('commit')`,
    'END',
  ].join('\n');

/** Counts each writer's rows, after an integrity check. @returns lines `<writer> <count>` */
export const countRows = (api: ApiClient, id: string, database: string): Promise<string> =>
  outputOf(
    api,
    id,
    [
      `python3 - <<'END'`,
      'import sqlite3',
      `database = sqlite3.connect('${database}', timeout=60)`,
      `assert database.execute('pragma integrity_check').fetchone() == ('ok',)`,
      `for row in database.execute('select writer, count(distinct number) from rows group by 1'):`,
      `    print(*row)`,
      'END',
    ].join('\n'),
  );
