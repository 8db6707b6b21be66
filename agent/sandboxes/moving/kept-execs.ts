import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import Type from 'typebox';
import { errnoOf } from '../../../shared/errors.ts';
import { sandboxIdPattern } from '../../../shared/ids.ts';
import { parseJson } from '../../../shared/json.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { sandboxExecStatuses } from '../../../shared/schemas/sandbox-record.ts';
import { type Ring, seal, unseal } from '../../../shared/secrets.ts';
import { compile } from '../../../shared/validate.ts';
import type { SandboxExecRow, SandboxJournal } from '../../journal/sandbox-journal.ts';
import { SerialQueue } from '../../queues/serial-queue.ts';
import { failpoint } from '../../system/failpoint.ts';
import { readFileWithin } from '../../system/read-file-within.ts';
import { writeDurably } from '../../system/write-durably.ts';
import { onSharedThread } from '../execs/shared-threads.ts';

/*
 * The records of a sandbox's commands, kept in the machine's directory like the sandbox's own
 * (carried-sandbox.ts). Each line of the file is sealed for this machine and has some records: the
 * first one all that the journal had when the file was written, the others those that began or ended
 * since. The file is written anew when the others have become many. A line without its end was being
 * written when its host died.
 */

const FILE = 'execs.sealed';
const RECORDS_KEPT_MAX = 2 * LIMITS.sandboxExecsListedMax;
/** The longest command of each record, sealed. */
const BYTES_MAX = RECORDS_KEPT_MAX * LIMITS.commandBytesMax;
const APPENDED = { linesMax: 4 * LIMITS.sandboxExecsListedMax, bytesMax: BYTES_MAX / 4 } as const;

const optional = Type.Optional;
const Uuid = Type.String({ pattern: sandboxIdPattern });
const Execs = Type.Object({
  version: Type.Literal(1),
  execs: Type.Array(
    Type.Object({
      id: Uuid,
      sandboxId: Uuid,
      command: Type.String({ maxLength: LIMITS.commandBytesMax }),
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
    { maxItems: 2 * RECORDS_KEPT_MAX },
  ),
});
const parseExecs = compile(Execs);

const contextOf = (vmId: string): string => `moving execs of ${vmId}`;

/** A command that has ended stays so. */
function merge(into: Map<string, SandboxExecRow>, rows: Iterable<SandboxExecRow>): void {
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
  for (const line of await readLines(join(directory, FILE))) {
    const text = unseal(keys, line, contextOf(vmId));
    merge(execs, parseExecs(parseJson(text), FILE).execs as SandboxExecRow[]);
  }
  const rows = [...execs.values()];
  if (rows.some(({ sandboxId }) => sandboxId !== id))
    throw new Error('it has commands of another sandbox');
  return rows;
}

/** The lines that are whole; none without a file. */
async function readLines(path: string): Promise<string[]> {
  try {
    const bytes = await onSharedThread(() => readFileWithin(path, BYTES_MAX));
    return bytes.toString('utf8').split('\n').slice(0, -1);
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return [];
    throw error;
  }
}

/** The file of one sandbox of this host. */
export class KeptExecs {
  readonly #directory: string;
  readonly #keys: Ring<Buffer>;
  readonly #sandbox: { readonly id: string; readonly vmId: string };
  readonly #journal: Pick<SandboxJournal, 'execsOf'>;
  readonly #queue = new SerialQueue();
  /** The newest records that are not in the file yet. */
  readonly #waiting = new Map<string, SandboxExecRow>();
  /** The write that will take what waits. */
  #next: Promise<void> | undefined;
  /** Counts of appended lines since the file was written; undefined unless all else is in it. */
  #appended: { lines: number; bytes: number } | undefined;

  constructor(
    directory: string,
    keys: Ring<Buffer>,
    sandbox: { readonly id: string; readonly vmId: string },
    journal: Pick<SandboxJournal, 'execsOf'>,
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
   * Keeps a record that the journal has, or is being given; durable when it returns. Those that come
   * while another is written are written together.
   */
  async keep(row: SandboxExecRow): Promise<void> {
    merge(this.#waiting, [row]);
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
    const { lines = 0, bytes = 0 } = this.#appended ?? {};
    const isLong = lines >= APPENDED.linesMax || bytes >= APPENDED.bytesMax;
    const isWhole = this.#appended !== undefined && !isLong;
    // A failure may have written half a line.
    this.#appended = undefined;
    try {
      const write = (): Promise<number> => (isWhole ? this.#append(rows) : this.#writeAll(rows));
      const added = await onSharedThread(write);
      this.#appended = isWhole
        ? { lines: lines + 1, bytes: bytes + added }
        : { lines: 0, bytes: 0 };
      for (const [id, row] of rows) if (this.#waiting.get(id) === row) this.#waiting.delete(id);
    } finally {
      // Those that have waited for so long are in the journal.
      const surplus = this.#waiting.size - RECORDS_KEPT_MAX;
      for (const id of [...this.#waiting.keys()].slice(0, Math.max(0, surplus)))
        this.#waiting.delete(id);
    }
  }

  /** @returns how many bytes it wrote */
  async #append(rows: ReadonlyMap<string, SandboxExecRow>): Promise<number> {
    if (rows.size === 0) return 0;
    const line = this.#lineOf(rows);
    // Not made here: a machine that another host has by now takes its files along.
    const flags = constants.O_WRONLY | constants.O_APPEND | constants.O_NOFOLLOW;
    const file = await failpoint('append execs', () => open(join(this.#directory, FILE), flags));
    try {
      await file.writeFile(line);
      await file.sync(); // As ExecOutput.sync.
    } finally {
      await file.close();
    }
    return line.length;
  }

  async #writeAll(rows: ReadonlyMap<string, SandboxExecRow>): Promise<number> {
    const all = new Map<string, SandboxExecRow>();
    merge(all, await this.#journal.execsOf(this.#sandbox.id));
    merge(all, rows.values());
    await failpoint('keep execs', () => writeDurably(this.#directory, FILE, this.#lineOf(all)));
    return 0;
  }

  #lineOf(rows: ReadonlyMap<string, SandboxExecRow>): string {
    const text = JSON.stringify({ version: 1, execs: [...rows.values()] });
    return `${seal(this.#keys, text, contextOf(this.#sandbox.vmId))}\n`;
  }
}
