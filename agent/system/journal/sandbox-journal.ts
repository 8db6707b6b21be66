import type { SandboxState } from '../../../shared/sandbox-lifecycle.ts';
import type {
  HookResult,
  SandboxConfig,
  SandboxExecRecord,
  SandboxExecStatus,
  SandboxExitReason,
} from '../../../shared/schemas/sandbox-record.ts';
import type { ShownNetworkPolicy } from '../../../shared/schemas/network-policy.ts';
import {
  all,
  commit,
  type Database,
  durable,
  insertRow,
  type Row,
  run,
  saveRow,
  type Value,
} from './sqlite.ts';
import { parseJson } from '../../../shared/json.ts';

/** The image that a sandbox's disk begins with, other than the default one. */
export interface SandboxBase {
  /** With registry, and tag or digest. */
  readonly reference: string;
  /** Undefined until the image was on this host, unless the caller chose it by its id. */
  readonly digest?: string;
  /** The platform of the image when it came to this host, so that starts need not ask for it. */
  readonly platform?: 'amd64' | 'arm64';
  readonly config?: {
    readonly env: Readonly<Record<string, string>>;
    readonly workingDir: string;
    readonly user: string;
  };
}

/**
 * The addresses that names of a policy's rules resolved to: by the set of the rule, with the time
 * until which each counts, in seconds since the epoch.
 */
export type NameAddresses = Readonly<Record<string, Readonly<Record<string, number>>>>;

/** A sandbox as its host's journal has it. */
export interface SandboxRow {
  readonly id: string;
  readonly accountId: string;
  readonly config: SandboxConfig;
  readonly environment: Readonly<Record<string, string>>;
  /** Undefined: the default image of its host. */
  readonly image: SandboxBase | undefined;
  /** The network policy, without secrets. */
  readonly network: ShownNetworkPolicy;
  /** The same sealed, with its secrets; undefined when it has none. */
  readonly networkSealed: string | undefined;
  /** Addresses of the policy's names that its memory may know, while it does not run. */
  readonly nameAddresses?: NameAddresses | undefined;
  readonly rootDiskId: string;
  readonly parentId: string | undefined;
  /** The snapshot that it was created from. */
  readonly snapshotId: string | undefined;
  /** Names its directory and control groups; differs from `id` when it took a prewarmed VM. */
  readonly vmId: string;
  /** The user of its machine; negative while it has none, before its image is there. */
  readonly uid: number;
  readonly slot: number | undefined;
  readonly bootId: string;
  readonly state: SandboxState;
  readonly checkpoint: string | undefined;
  /** When its run began, in milliseconds of the host's monotonic clock. */
  readonly runningSince: number | undefined;
  /** When its maximum running time ends, by the same clock. */
  readonly expiresAt: number | undefined;
  /** Since when it is idle, by the same clock; undefined while something uses it. */
  readonly idleSince: number | undefined;
  readonly revision: number;
  readonly createdAt: string;
  readonly lastActiveAt: string;
  readonly runningAt: string | undefined;
  readonly finishedAt: string | undefined;
  readonly exitReason: SandboxExitReason | undefined;
  readonly exitMessage: string | undefined;
  /** How far the hook of the memory has come that it runs from; undefined: it has none. */
  readonly hook: HookResult | undefined;
  readonly isDeleting: boolean;
}

/** A command in a sandbox as its host's journal has it. */
export interface SandboxExecRow extends SandboxExecRecord {
  /** Milliseconds since the epoch. */
  readonly timeoutAt: number | undefined;
  /** Written before the command is killed: the status that its end will have. */
  readonly ending: 'cancelled' | 'timed_out' | undefined;
}

/** A command but for its text, which can be long: what is kept in memory of those that run. */
export type SandboxExecState = Omit<SandboxExecRow, 'command'>;

const table = {
  name: 'sandboxes',
  columns: [
    'id',
    'account_id',
    'config',
    'environment',
    'image',
    'network',
    'network_sealed',
    'name_addresses',
    'root_disk_id',
    'parent_id',
    'snapshot_id',
    'vm_id',
    'uid',
    'slot',
    'boot_id',
    'state',
    'checkpoint',
    'running_since',
    'expires_at',
    'idle_since',
    'revision',
    'created_at',
    'last_active_at',
    'running_at',
    'finished_at',
    'exit_reason',
    'exit_message',
    'hook',
    'is_deleting',
  ],
};

/** The columns of a {@link SandboxExecState}. */
const execColumns = [
  'id',
  'sandbox_id',
  'timeout_at',
  'status',
  'ending',
  'started_at',
  'finished_at',
  'exit_code',
  'exit_reason',
  'execute_time_ms',
  'dropped_bytes',
].join(', ');

const valuesOf = (row: SandboxRow): Value[] => [
  row.id,
  row.accountId,
  JSON.stringify(row.config),
  JSON.stringify(row.environment),
  row.image === undefined ? null : JSON.stringify(row.image),
  JSON.stringify(row.network),
  row.networkSealed ?? null,
  row.nameAddresses === undefined ? null : JSON.stringify(row.nameAddresses),
  row.rootDiskId,
  row.parentId ?? null,
  row.snapshotId ?? null,
  row.vmId,
  row.uid,
  row.slot ?? null,
  row.bootId,
  row.state,
  row.checkpoint ?? null,
  row.runningSince ?? null,
  row.expiresAt ?? null,
  row.idleSince ?? null,
  row.revision,
  row.createdAt,
  row.lastActiveAt,
  row.runningAt ?? null,
  row.finishedAt ?? null,
  row.exitReason ?? null,
  row.exitMessage ?? null,
  row.hook === undefined ? null : JSON.stringify(row.hook),
  row.isDeleting ? 1 : 0,
];

const text = (value: string | number | null | undefined): string | undefined =>
  typeof value === 'string' ? value : undefined;
const number = (value: string | number | null | undefined): number | undefined =>
  typeof value === 'number' ? value : undefined;

/** Machines and disks are found by this value: without it they would seem to have no owner. */
function required(row: Row, name: string): string {
  const value = text(row[name]);
  if (value === undefined) throw new Error(`the journal has a sandbox without ${name}`);
  return value;
}

function imageOf(row: Row): SandboxBase | undefined {
  const image = text(row['image']);
  return image === undefined ? undefined : (parseJson(image) as SandboxBase);
}

export function toNameAddresses(row: Row): NameAddresses | undefined {
  const addresses = text(row['name_addresses']);
  return addresses === undefined ? undefined : (parseJson(addresses) as NameAddresses);
}

function hookOf(row: Row): HookResult | undefined {
  const hook = text(row['hook']);
  return hook === undefined ? undefined : (parseJson(hook) as HookResult);
}

const toSandbox = (row: Row): SandboxRow => ({
  id: String(row['id']),
  accountId: String(row['account_id']),
  config: parseJson(String(row['config'])) as SandboxConfig,
  environment: parseJson(String(row['environment'])) as Record<string, string>,
  image: imageOf(row),
  network: parseJson(String(row['network'])) as ShownNetworkPolicy,
  networkSealed: text(row['network_sealed']),
  nameAddresses: toNameAddresses(row),
  rootDiskId: String(row['root_disk_id']),
  parentId: text(row['parent_id']),
  snapshotId: text(row['snapshot_id']),
  vmId: required(row, 'vm_id'),
  uid: Number(row['uid']),
  slot: number(row['slot']),
  bootId: String(row['boot_id']),
  state: String(row['state']) as SandboxState,
  checkpoint: text(row['checkpoint']),
  runningSince: number(row['running_since']),
  expiresAt: number(row['expires_at']),
  idleSince: number(row['idle_since']),
  revision: Number(row['revision']),
  createdAt: String(row['created_at']),
  lastActiveAt: String(row['last_active_at']),
  runningAt: text(row['running_at']),
  finishedAt: text(row['finished_at']),
  exitReason: text(row['exit_reason']) as SandboxExitReason | undefined,
  exitMessage: text(row['exit_message']),
  hook: hookOf(row),
  isDeleting: row['is_deleting'] === 1,
});

function toExecState(row: Row): SandboxExecState {
  const finishedAt = text(row['finished_at']);
  const exitCode = number(row['exit_code']);
  const exitReason = text(row['exit_reason']);
  const executeTimeMs = number(row['execute_time_ms']);
  return {
    id: String(row['id']),
    sandboxId: String(row['sandbox_id']),
    timeoutAt: number(row['timeout_at']),
    status: String(row['status']) as SandboxExecStatus,
    ending: text(row['ending']) as SandboxExecRow['ending'],
    startedAt: String(row['started_at']),
    ...(finishedAt === undefined ? {} : { finishedAt }),
    ...(exitCode === undefined ? {} : { exitCode }),
    ...(exitReason === undefined ? {} : { exitReason }),
    ...(executeTimeMs === undefined ? {} : { executeTimeMs }),
    droppedBytes: Number(row['dropped_bytes']),
  };
}

const toExec = (row: Row): SandboxExecRow => ({
  ...toExecState(row),
  command: String(row['command']),
});

/**
 * The tables of sandboxes in the journal. Every write is durable when its promise resolves, but for
 * {@link SandboxJournal.beginExec}.
 */
export class SandboxJournal {
  readonly #database: Database;

  constructor(database: Database) {
    this.#database = database;
  }

  async insert(row: SandboxRow): Promise<void> {
    await insertRow(this.#database, table, valuesOf(row));
  }

  /** Writes the row as it is now. */
  async save(row: SandboxRow): Promise<void> {
    await saveRow(this.#database, table, valuesOf(row));
  }

  /** Removes the sandbox and its commands. */
  async remove(id: string): Promise<void> {
    await run(this.#database, 'DELETE FROM sandboxes WHERE id = ?', [id]);
  }

  /** All sandboxes of this host, oldest first. */
  async list(): Promise<SandboxRow[]> {
    const rows = await all(this.#database, 'SELECT * FROM sandboxes ORDER BY created_at, id');
    return rows.map(toSandbox);
  }

  /**
   * Writes a command that is about to begin. The row outlives this agent, and the host's next crash
   * once {@link durable} says so: the crash would end the command, too.
   * @throws Error when a command with this id exists
   */
  async beginExec(row: SandboxExecRow): Promise<void> {
    await commit(
      this.#database,
      `INSERT INTO sandbox_execs
       (id, sandbox_id, command, timeout_at, status, started_at, dropped_bytes)
       VALUES (?, ?, ?, ?, ?, ?, ?)`,
      [
        row.id,
        row.sandboxId,
        row.command,
        row.timeoutAt ?? null,
        row.status,
        row.startedAt,
        row.droppedBytes,
      ],
    );
  }

  /** Resolves when everything that was written before is durable. */
  durable(): Promise<void> {
    return durable(this.#database);
  }

  /**
   * Writes the fields of a command that can change. A command that has ended is left alone, because
   * a write that began while it ran may arrive late.
   */
  async saveExec(row: SandboxExecState): Promise<void> {
    await run(
      this.#database,
      `UPDATE sandbox_execs SET (status, ending, finished_at, exit_code, exit_reason,
       execute_time_ms, dropped_bytes) = (?, ?, ?, ?, ?, ?, ?) WHERE id = ? AND status = 'running'`,
      [
        row.status,
        row.ending ?? null,
        row.finishedAt ?? null,
        row.exitCode ?? null,
        row.exitReason ?? null,
        row.executeTimeMs ?? null,
        row.droppedBytes,
        row.id,
      ],
    );
  }

  /** Ids of all commands of a sandbox in the order of their execution. */
  async execIds(sandboxId: string): Promise<string[]> {
    const sql = 'SELECT id FROM sandbox_execs WHERE sandbox_id = ? ORDER BY position';
    return (await all(this.#database, sql, [sandboxId])).map((row) => String(row['id']));
  }

  /** Adds commands that another host's journal had; those that are there stay as they are. */
  async addExecs(execs: readonly SandboxExecRow[]): Promise<void> {
    for (const row of execs) {
      await run(
        this.#database,
        `INSERT OR IGNORE INTO sandbox_execs (id, sandbox_id, command, timeout_at, status, ending,
         started_at, finished_at, exit_code, exit_reason, execute_time_ms, dropped_bytes)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
        [
          ...[row.id, row.sandboxId, row.command, row.timeoutAt ?? null, row.status],
          ...[row.ending ?? null, row.startedAt, row.finishedAt ?? null, row.exitCode ?? null],
          ...[row.exitReason ?? null, row.executeTimeMs ?? null, row.droppedBytes],
        ],
      );
    }
  }

  async removeExec(id: string): Promise<void> {
    await run(this.#database, 'DELETE FROM sandbox_execs WHERE id = ?', [id]);
  }

  /**
   * The newest commands of a sandbox in the order of their execution, their text cut to a length.
   */
  async listExecs(
    sandboxId: string,
    count: number,
    commandLengthMax: number,
  ): Promise<SandboxExecRow[]> {
    const sql = `SELECT ${execColumns}, substr(command, 1, ?) AS command FROM sandbox_execs
                 WHERE sandbox_id = ? ORDER BY position DESC LIMIT ?`;
    const rows = await all(this.#database, sql, [commandLengthMax, sandboxId, count]);
    return rows.map(toExec).toReversed();
  }

  /** The running commands of a sandbox in the order of their execution. */
  async runningExecs(sandboxId: string): Promise<SandboxExecState[]> {
    const sql = `SELECT ${execColumns} FROM sandbox_execs
                 WHERE sandbox_id = ? AND status = 'running' ORDER BY position`;
    return (await all(this.#database, sql, [sandboxId])).map(toExecState);
  }

  /** Ids of the ended commands of a sandbox, oldest first. */
  async endedExecs(sandboxId: string): Promise<string[]> {
    const sql = `SELECT id FROM sandbox_execs
                 WHERE sandbox_id = ? AND status <> 'running' ORDER BY position`;
    return (await all(this.#database, sql, [sandboxId])).map((row) => String(row['id']));
  }

  async exec(sandboxId: string, id: string): Promise<SandboxExecRow | undefined> {
    const sql = 'SELECT * FROM sandbox_execs WHERE sandbox_id = ? AND id = ?';
    const [row] = await all(this.#database, sql, [sandboxId, id]);
    return row === undefined ? undefined : toExec(row);
  }
}
