import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import Type from 'typebox';
import { errnoOf } from '../../../shared/errors.ts';
import { sandboxIdPattern } from '../../../shared/ids.ts';
import { parseJson } from '../../../shared/json.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import { sandboxExecStatuses } from '../../../shared/schemas/sandbox-record.ts';
import { type Ring, seal, unseal } from '../../../shared/secrets.ts';
import { KiB } from '../../../shared/units.ts';
import { compile } from '../../../shared/validate.ts';
import type {
  SandboxExecRow,
  SandboxExecState,
  SandboxJournal,
} from '../../system/journal/sandbox-journal.ts';
import { SerialQueue } from '../../system/queues/serial-queue.ts';
import { failpoint } from '../../system/failpoint.ts';
import { readLinesWithin } from '../../system/read-file-within.ts';
import { writeDurably } from '../../system/write-durably.ts';
import { onSharedThread } from '../execs/shared-threads.ts';

/*
 * The records of a sandbox's commands, kept in the machine's directory like the sandbox's own
 * (handover-record.ts). Each line of the file is sealed for this machine and has some records: the
 * first ones all that the journal had when the file was written, the others those that began or
 * ended since. The file is written anew when the others have become many. A line without its end
 * was being written when its host died.
 *
 * Commands may be long. So records are read, sealed and written a line at a time, and the lines are
 * short: nothing else happens in the agent while one of them is sealed or opened. Records that wait
 * to be written are without their commands, which the journal has.
 */

const FILE = 'execs.sealed';
const RECORDS_MAX = 2 * SANDBOX_LIMITS.sandboxExecsListedMax;
/** A line ends with the record with which its commands are together as long as this. */
const LINE_LENGTH = 256 * KiB;
/**
 * The longest command of each record, sealed: JSON may have six bytes for one, and base64 eight.
 */
const BYTES_MAX = RECORDS_MAX * 8 * SCHEMA_LIMITS.commandBytesMax;
const APPENDED = {
  linesMax: 4 * SANDBOX_LIMITS.sandboxExecsListedMax,
  bytesMax: (RECORDS_MAX / 4) * SCHEMA_LIMITS.commandBytesMax,
} as const;

const optional = Type.Optional;
const Uuid = Type.String({ pattern: sandboxIdPattern });
const Execs = Type.Object({
  version: Type.Literal(1),
  execs: Type.Array(
    Type.Object({
      id: Uuid,
      sandboxId: Uuid,
      command: Type.String({ maxLength: SCHEMA_LIMITS.commandBytesMax }),
      timeoutAt: optional(Type.Integer()),
      status: Type.Enum([...sandboxExecStatuses]),
      ending: optional(Type.Enum(['cancelled', 'timed_out'])),
      startedAt: Type.String(),
      finishedAt: optional(Type.String()),
      exitCode: optional(Type.Integer()),
      exitReason: optional(Type.String()),
      executeTimeMs: optional(Type.Number({ minimum: 0 })),
      droppedBytes: Type.Integer({ minimum: 0 }),
    }),
    { maxItems: 2 * RECORDS_MAX },
  ),
});
const parseExecs = compile(Execs);

const contextOf = (vmId: string): string => `moving execs of ${vmId}`;

/** A command that has ended stays so. */
function merge<T extends SandboxExecState>(into: Map<string, T>, rows: Iterable<T>): void {
  for (const row of rows) {
    const known = into.get(row.id);
    if (known === undefined || known.status === 'running') into.set(row.id, row);
  }
}

/**
 * The commands of a sandbox in the order of their execution.
 * @param directory the machine's, at this host or another
 * @throws Error for anything but what a host of this cluster has written of this machine
 */
export async function readExecs(
  directory: string,
  keys: Ring<Buffer>,
  { id, vmId }: { readonly id: string; readonly vmId: string },
): Promise<SandboxExecRow[]> {
  const execs = new Map<string, SandboxExecRow>();
  try {
    await onSharedThread(async () => {
      for await (const line of readLinesWithin(join(directory, FILE), BYTES_MAX)) {
        const text = unseal(keys, line, contextOf(vmId));
        merge(execs, parseExecs(parseJson(text), FILE).execs as SandboxExecRow[]);
      }
    });
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') throw error;
  }
  const rows = [...execs.values()];
  if (rows.some(({ sandboxId }) => sandboxId !== id))
    throw new Error('it has commands of another sandbox');
  return rows;
}

type ExecJournal = Pick<SandboxJournal, 'execIds' | 'exec'>;

interface Appended {
  readonly lines: number;
  readonly bytes: number;
}

/** The file of one sandbox of this host. */
export class HandedOverExecs {
  readonly #directory: string;
  readonly #keys: Ring<Buffer>;
  readonly #sandbox: { readonly id: string; readonly vmId: string };
  readonly #journal: ExecJournal;
  readonly #queue = new SerialQueue();
  /** The newest records that are not in the file yet. */
  readonly #waiting = new Map<string, SandboxExecState>();
  /** The write that will take what waits. */
  #next: Promise<void> | undefined;
  /** Counts of appended lines since the file was written; undefined unless all else is in it. */
  #appended: Appended | undefined;

  constructor(
    directory: string,
    keys: Ring<Buffer>,
    sandbox: { readonly id: string; readonly vmId: string },
    journal: ExecJournal,
  ) {
    this.#directory = directory;
    this.#keys = keys;
    this.#sandbox = sandbox;
    this.#journal = journal;
  }

  get vmId(): string {
    return this.#sandbox.vmId;
  }

  /**
   * Saves a record of a command that the journal has; durable when it returns. The journal may
   * still be given what has changed. Records that come while another is written are written
   * together.
   */
  async save(state: SandboxExecState): Promise<void> {
    merge(this.#waiting, [state]);
    await (this.#next ??= this.#queue.add(() => this.#write()));
  }

  /** Has every record of the journal in the file. */
  async complete(): Promise<void> {
    if (this.#appended !== undefined && this.#waiting.size === 0) return;
    await (this.#next ??= this.#queue.add(() => this.#write()));
  }

  async #write(): Promise<void> {
    this.#next = undefined;
    const rows = new Map(this.#waiting);
    const appended = this.#appended;
    const isWhole = appended !== undefined && !isLong(appended);
    // A failure may have written half a line.
    this.#appended = undefined;
    try {
      const write = (): Promise<Appended> =>
        isWhole ? this.#append(rows, appended) : this.#writeAll(rows);
      this.#appended = await onSharedThread(write);
      for (const [id, row] of rows) if (this.#waiting.get(id) === row) this.#waiting.delete(id);
    } finally {
      // Those that have waited for so long are in the journal.
      const surplus = this.#waiting.size - RECORDS_MAX;
      for (const id of [...this.#waiting.keys()].slice(0, Math.max(0, surplus)))
        this.#waiting.delete(id);
    }
  }

  async #append(rows: ReadonlyMap<string, SandboxExecState>, before: Appended): Promise<Appended> {
    if (rows.size === 0) return before;
    let { lines, bytes } = before;
    // Not made here: a machine that another host has by now takes its files along.
    const flags = constants.O_WRONLY | constants.O_APPEND | constants.O_NOFOLLOW;
    const file = await failpoint('append execs', () => open(join(this.#directory, FILE), flags));
    try {
      for await (const line of this.#linesOf(this.#whole(rows.keys(), rows))) {
        await file.writeFile(line);
        lines += 1;
        bytes += line.length;
      }
      await file.sync(); // Like ExecOutput.sync.
    } finally {
      await file.close();
    }
    return { lines, bytes };
  }

  async #writeAll(rows: ReadonlyMap<string, SandboxExecState>): Promise<Appended> {
    const ids = new Set([...(await this.#journal.execIds(this.#sandbox.id)), ...rows.keys()]);
    const lines = this.#linesOf(this.#whole(ids, rows));
    await failpoint('keep execs', () => writeDurably(this.#directory, FILE, lines));
    return { lines: 0, bytes: 0 };
  }

  /** These records with their commands, as the journal has them or is being given them. */
  async *#whole(
    ids: Iterable<string>,
    given: ReadonlyMap<string, SandboxExecState>,
  ): AsyncGenerator<SandboxExecRow> {
    for (const id of ids) {
      const row = await this.#journal.exec(this.#sandbox.id, id);
      if (row === undefined) continue; // Removed meanwhile.
      const { command } = row;
      yield row.status === 'running' ? { ...row, ...given.get(id), command } : row;
    }
  }

  async *#linesOf(rows: AsyncIterable<SandboxExecRow>): AsyncGenerator<string> {
    let execs: SandboxExecRow[] = [];
    let length = 0;
    for await (const row of rows) {
      execs.push(row);
      length += row.command.length;
      if (length < LINE_LENGTH) continue;
      yield this.#lineOf(execs);
      execs = [];
      length = 0;
    }
    if (execs.length > 0) yield this.#lineOf(execs);
  }

  #lineOf(execs: readonly SandboxExecRow[]): string {
    const text = JSON.stringify({ version: 1, execs });
    return `${seal(this.#keys, text, contextOf(this.#sandbox.vmId))}\n`;
  }
}

const isLong = ({ lines, bytes }: Appended): boolean =>
  lines >= APPENDED.linesMax || bytes >= APPENDED.bytesMax;
