/* Data that is stored between two runs of a process, and the messages of a QEMU monitor. */
import assert from 'node:assert';
import { createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { Journal } from '../../../agent/system/journal/journal.ts';
import type { SandboxRow } from '../../../agent/system/journal/sandbox-journal.ts';
import { all, close, open, run } from '../../../agent/system/journal/sqlite.ts';
import {
  QmpClient,
  QmpCommandError,
  QmpUnavailableError,
} from '../../../agent/machines/qemu/process/qmp-client.ts';
import { parseManifest } from '../../../shared/schemas/disk-manifest.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { isOwnError, type Target, unlessRefused } from '../target.ts';

const row: SandboxRow = {
  id: '01234567-89ab-4def-8123-456789abcdef',
  accountId: 'account',
  config: {} as SandboxRow['config'],
  environment: {},
  image: undefined,
  network: {},
  networkSealed: undefined,
  rootDiskId: 'disk',
  parentId: undefined,
  snapshotId: undefined,
  vmId: 'vm',
  uid: 1,
  slot: undefined,
  bootId: 'boot',
  state: 'running',
  checkpoint: undefined,
  runningSince: undefined,
  expiresAt: undefined,
  idleSince: undefined,
  revision: 1,
  createdAt: 'now',
  lastActiveAt: 'now',
  runningAt: undefined,
  finishedAt: undefined,
  exitReason: undefined,
  exitMessage: undefined,
  hook: undefined,
  isDeleting: false,
};

/** A journal, and a second connection that writes rows which no agent would write. */
class JournalUnderTest implements AsyncDisposable {
  static async open(): Promise<JournalUnderTest> {
    const directory = await temporaryDirectory();
    const path = join(directory.path, 'journal');
    const journal = await Journal.open(path);
    await journal.sandboxes.insert(row);
    return new JournalUnderTest(directory, journal, await open(path));
  }

  readonly directory: AsyncDisposable;
  readonly journal: Journal;
  readonly database: Awaited<ReturnType<typeof open>>;

  private constructor(
    directory: AsyncDisposable,
    journal: Journal,
    database: Awaited<ReturnType<typeof open>>,
  ) {
    this.directory = directory;
    this.journal = journal;
    this.database = database;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await close(this.database);
    await this.journal.close();
    await this.directory[Symbol.asyncDispose]();
  }
}

let underTest: JournalUnderTest | undefined;

const journalRows: Target = {
  name: 'journal-rows',
  seeds: ['exit_message\ntext', 'config\n{"a":1}', 'environment\n{"A":"b"}', 'slot\n7'],
  words: [
    'config\n',
    'environment\n',
    'slot\n',
    'exit_message\n',
    'is_deleting\n',
    '{',
    '}',
    '"',
    '\0',
  ],
  executions: 200,
  open: async () => {
    underTest = await JournalUnderTest.open();
    return underTest;
  },
  async run(input) {
    assert(underTest !== undefined);
    const { journal, database } = underTest;
    const text = input.toString('utf8');
    // Callers' texts must come back unchanged.
    const exitMessage = text.slice(0, 1000);
    const environment = { [text.slice(0, 100)]: text };
    await journal.sandboxes.save({ ...row, exitMessage, environment });
    const [saved] = await journal.sandboxes.list();
    assert.deepStrictEqual([saved?.exitMessage, saved?.environment], [exitMessage, environment]);
    // A row of a damaged file is either read as it is or refused.
    const [column = '', value = ''] = text.split('\n', 2);
    const columns = await all(database, "SELECT name FROM pragma_table_info('sandboxes')");
    if (columns.some(({ name }) => name === column) && column !== 'id') {
      const sql = `UPDATE sandboxes SET ${column} = ?`;
      await run(database, sql, [value]).catch((error: unknown) => assert(isOwnError(error)));
      await journal.sandboxes.list().catch((error: unknown) => assert(isOwnError(error)));
    }
    unlessRefused(isOwnError, () => parseManifest(text));
  },
};

/** Sends one input to each client that connects. */
class Monitor implements AsyncDisposable {
  static async open(): Promise<Monitor> {
    const directory = await temporaryDirectory();
    const monitor = new Monitor(directory, join(directory.path, 'monitor'));
    await new Promise<void>((resolve) => {
      monitor.#server.listen(monitor.path, resolve);
    });
    return monitor;
  }

  readonly path: string;
  says: Buffer = Buffer.alloc(0);
  readonly #directory: AsyncDisposable;
  readonly #server = createServer((socket: Socket) => {
    socket.on('error', () => undefined);
    socket.resume().end(this.says);
  });

  private constructor(directory: AsyncDisposable, path: string) {
    this.#directory = directory;
    this.path = path;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await new Promise((resolve) => {
      this.#server.close(resolve);
    });
    await this.#directory[Symbol.asyncDispose]();
  }
}

let monitor: Monitor | undefined;

const GREETING = '{"QMP": {"version": {}, "capabilities": []}}\n';

const qmp: Target = {
  name: 'qmp',
  seeds: [
    GREETING,
    `${GREETING}{"return": {}, "id": 1}\n{"event": "STOP", "data": {"a": 1}}\n`,
    `${GREETING}{"error": {"class": "GenericError", "desc": "no"}, "id": 1}\n`,
  ],
  words: [
    ...[
      GREETING,
      '{"return": {}, "id": 1}\n',
      '"event": "',
      '"id": 1',
      '"error": {',
      '\n',
      '[',
      '{',
    ],
    ...['null', '__proto__', '"data": []', '1e999'],
  ],
  executions: 200,
  open: async () => {
    monitor = await Monitor.open();
    return monitor;
  },
  async run(input) {
    assert(monitor !== undefined);
    monitor.says = input;
    const names: string[] = [];
    try {
      const client = await QmpClient.open(monitor.path, {
        listener: ({ name }) => names.push(name),
      });
      client.close();
    } catch (error) {
      assert(error instanceof QmpCommandError || error instanceof QmpUnavailableError);
      assert.match(error.message, /^[ -~]*$/u);
    }
    for (const name of names) assert.match(name, /^[ -~]*$/u);
  },
};

export const storeTargets: readonly Target[] = [journalRows, qmp];
