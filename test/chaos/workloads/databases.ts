import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ExecResult } from '../../../shared/schemas/exec.ts';
import { createDisk, exec } from '../../helpers/disks.ts';
import { type ApiSandbox, createSandbox, sandboxPath } from '../../helpers/sandboxes.ts';
import { waitFor } from '../../helpers/wait.ts';
import { attempt, STATES } from '../attempt.ts';
import { RunLedger } from '../run-ledger.ts';
import { execToEnd, removeSandbox, SETTLES_WITHIN_MS } from '../sandbox-calls.ts';
import type { Workload, WorkloadContext } from '../workload.ts';

const PROGRAM = 'chaos-database.py';
const MODES = ['wal', 'delete'] as const;
/** Rows of a guest's writer, which is slow to start, and of a command. */
const GUEST_ROWS = { min: 10, max: 40 };
const COMMAND_ROWS = { min: 1, max: 30 };
const PAUSE_MS = { min: 50, max: 400 } as const;
/** Exit codes: 128 and the signal, when memory that is a file cannot be read; the program's own. */
const SIGBUS = 135;
const CORRUPT = 4;

/** A program's end, on either side. */
interface Ended {
  /** The error's code when the outcome is unknown. */
  readonly code: string;
  readonly exitCode?: number | undefined;
  readonly stdout: string;
  readonly stderr: string;
}

type Side = 'guest' | 'paused guest' | 'command';

/** A database in one journal mode, and the rows that its writers were told of. */
interface Database {
  readonly mode: (typeof MODES)[number];
  readonly name: string;
  readonly ledger: RunLedger;
}

/**
 * SQLite databases on a disk that two kernels use: a virtual machine's, which mounts it over NFS,
 * and the host's, for commands. A row counts as committed once its writer has printed it.
 */
export class Databases implements Workload {
  readonly #context: WorkloadContext;
  readonly #diskId: string;
  readonly #id: string;
  #databases: readonly Database[] = [];
  #rounds = 0;
  #pauses = 0;
  #isDisturbed = false;

  private constructor(context: WorkloadContext, diskId: string, id: string) {
    this.#context = context;
    this.#diskId = diskId;
    this.#id = id;
  }

  static async create(context: WorkloadContext): Promise<Databases> {
    const { id } = await createDisk(context.api);
    const program = await readFile(`test/fixtures/${PROGRAM}`, 'utf8');
    await exec(context.api, id, `cat > ${PROGRAM} <<'END'\n${program}\nEND`);
    const mounts = [{ disk_id: id, path: '/d' }];
    const { sandbox_id: sandbox } = await createSandbox(context.api, { mounts });
    return new Databases(context, id, sandbox);
  }

  /** Has the databases read as soon as their writers have ended, without waiting for repairs. */
  disturbed(): void {
    this.#isDisturbed = true;
  }

  async run(over: AbortSignal): Promise<void> {
    const { random } = this.#context;
    this.#begin();
    while (!over.aborted) {
      const database = random.pick(this.#databases);
      const way = random.weighted({ both: 5, guest: 1, pause: 2 });
      const guest = this.#add(database, way === 'pause' ? 'paused guest' : 'guest', GUEST_ROWS);
      await Promise.all([guest, way === 'guest' ? undefined : this.#addBeside(database, guest)]);
      if (this.#isDisturbed) await this.#lookAtAll();
      await this.#tend();
      await sleep(random.integer(PAUSE_MS.min, PAUSE_MS.max));
    }
  }

  async check(): Promise<void> {
    for (const database of this.#databases) {
      const side: Side = this.#context.random.pick(['guest', 'command']);
      const read = async (): Promise<boolean> => {
        await this.#tend();
        return this.#look(database, side, true);
      };
      await waitFor(`${database.name} to be read by a ${side}`, read, SETTLES_WITHIN_MS);
    }
  }

  /** Deletes the sandbox. */
  async remove(): Promise<void> {
    await removeSandbox(this.#context, this.#id);
  }

  /** New databases for each round, so that what is read stays small. */
  #begin(): void {
    this.#rounds += 1;
    this.#databases = MODES.map((mode) => {
      const name = `${mode}-${this.#rounds}`;
      return { mode, name, ledger: new RunLedger(name, this.#context.findings, 'row') };
    });
  }

  /** Commands that each open the database and add rows, until the guest's writer has ended. */
  async #addBeside(database: Database, guest: Promise<void>): Promise<void> {
    const { random } = this.#context;
    const isOver = new AbortController();
    const over = guest.finally(() => isOver.abort());
    while (!isOver.signal.aborted) {
      await this.#add(database, 'command', COMMAND_ROWS);
      await Promise.race([over, sleep(random.integer(PAUSE_MS.min, PAUSE_MS.max))]);
    }
  }

  /** Adds some rows from one side. */
  async #add(database: Database, side: Side, { min, max }: typeof GUEST_ROWS): Promise<void> {
    const { ledger } = database;
    const count = this.#context.random.integer(min, max);
    const rows = Array.from({ length: count }, () => ledger.newId());
    const { code, stdout } = await this.#use(database, side, rows);
    const committed = new Set(stdout.split('\n'));
    const otherwise = code === 'ok' ? 'failed' : code;
    for (const row of rows) ledger.tell(row, committed.has(row) ? 'ok' : otherwise);
  }

  async #lookAtAll(): Promise<void> {
    this.#isDisturbed = false;
    for (const database of this.#databases) {
      // Either may be unable to, or the other has the database.
      if (!(await this.#look(database, 'command'))) await this.#look(database, 'guest');
    }
  }

  /** Compares a database with what its writers were told. @returns whether it could be read */
  async #look(database: Database, side: Side, isRepaired = false): Promise<boolean> {
    const { code, exitCode, stdout } = await this.#use(database, side, [], isRepaired);
    if (code !== 'ok') return false;
    if (exitCode === 0) {
      database.ledger.check(stdout);
      this.#context.findings.count(`databases read by a ${side}`);
    }
    // More looks would find a corrupt one as it is.
    return exitCode === 0 || exitCode === CORRUPT;
  }

  /**
   * Runs the program on one side. A corrupt database and a lost memory map are findings. But a
   * guest whose NFS server was killed has lost its lock, and reads its cache until it notices.
   */
  async #use(
    { mode, name }: Database,
    side: Side,
    rows: readonly string[],
    isRepaired = false,
  ): Promise<Ended> {
    const { findings } = this.#context;
    const directory = side === 'command' ? '/mnt/service' : '/d';
    const words = [`${directory}/${PROGRAM}`, `${directory}/${name}`, mode, ...rows];
    const command = `python3 ${words.join(' ')}`;
    const ended = await this.#run(side, command);
    const { exitCode, stderr } = ended;
    const corrupt = `${name} is corrupt for a ${side}: ${stderr.trim()}`;
    if (exitCode === CORRUPT && (side === 'command' || isRepaired)) findings.report(corrupt);
    else if (exitCode === CORRUPT) findings.count(`databases: read beside their locks (${mode})`);
    if (exitCode === SIGBUS) findings.report(`${name}: a ${side} was ended by SIGBUS`);
    if (exitCode === 3) findings.count(`databases: ${stderr.trim()} (${mode}, ${side})`);
    return ended;
  }

  #run(side: Side, command: string): Promise<Ended> {
    if (side === 'command') return this.#onHost(command);
    return side === 'guest' ? this.#inGuest(command) : this.#acrossPause(command);
  }

  /** A pause cancels commands, but not the processes that they have left. */
  async #acrossPause(command: string): Promise<Ended> {
    this.#pauses += 1;
    const file = `/root/pause-${this.#pauses}`;
    const left = `(${command} > ${file} 2> ${file}.error; echo $? > ${file}.code) < /dev/null &`;
    const begun = await this.#inGuest(`rm -f ${file}.code; ${left}`);
    if (begun.code !== 'ok') return begun;
    await this.#pauseAndResume();
    // A machine that was started again has no such process.
    const end = `timeout 60 sh -c 'until [ -s ${file}.code ]; do sleep 0.2; done'`;
    const shown = `cat ${file}; cat ${file}.error >&2; exit $(cat ${file}.code)`;
    const ended = await this.#inGuest(`${end}; ${shown}`);
    return { ...ended, code: ended.code === 'ok' ? 'ok' : 'cut' };
  }

  async #inGuest(command: string): Promise<Ended> {
    // A call that waits would lose the output of a writer whose agent is killed.
    const { code, exec: ended } = await execToEnd(this.#context, this.#id, command, false);
    const { exit_code: exitCode, stdout = '', stderr = '' } = ended ?? {};
    return { code, exitCode, stdout, stderr };
  }

  async #onHost(command: string): Promise<Ended> {
    const { api, findings } = this.#context;
    const request = ['POST', `/api/disks/${this.#diskId}/exec`] as const;
    const { code, data } = await attempt(findings, api, request, { body: { command } });
    const { exitCode, stdout, stderr } = (code === 'ok' ? data : {}) as Partial<ExecResult>;
    return { code, exitCode, stdout: stdout ?? '', stderr: stderr ?? '' };
  }

  async #state(action: 'start' | 'pause' | 'resume' | ''): Promise<string> {
    const { api, findings } = this.#context;
    const path = sandboxPath(this.#id);
    const request = action === '' ? ['GET', path] : ['POST', `${path}/${action}?wait=true`];
    const [method = '', target = ''] = request;
    const { code, data } = await attempt(findings, api, [method, target], { expected: STATES });
    return code === 'ok' ? (data as ApiSandbox).status : code;
  }

  /** While writers use it. They end only when it runs. */
  async #pauseAndResume(): Promise<void> {
    await sleep(this.#context.random.integer(0, 2_000));
    await this.#state('pause');
    await waitFor(`sandbox ${this.#id} to run`, () => this.#tend(), SETTLES_WITHIN_MS);
  }

  /** Brings the sandbox back, once. @returns whether it runs */
  async #tend(): Promise<boolean> {
    const state = await this.#state('');
    if (state === 'paused') return (await this.#state('resume')) === 'running';
    if (/^(?:stopped|failed)$/u.test(state)) return (await this.#state('start')) === 'running';
    return state === 'running';
  }
}
