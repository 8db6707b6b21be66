import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  type ApiSandbox,
  type ApiSandboxExec,
  createSandbox,
  machinesOf,
  sandboxPath,
} from '../../helpers/sandboxes.ts';
import { beginCounting, lastCount } from '../../helpers/counting.ts';
import { waitFor } from '../../helpers/wait.ts';
import { type Attempt, attempt, STATES } from '../attempt.ts';
import { RunLedger } from '../run-ledger.ts';
import { execToEnd, removeSandbox, SETTLES_WITHIN_MS } from '../sandbox-calls.ts';
import { succeed, type Workload, type WorkloadContext } from '../workload.ts';

const LOG = '/root/log';
const PAUSE_MS = { min: 50, max: 600 } as const;
const EXECS_REMEMBERED = 20;

const outcomeOf = ({ status, exit_code: exitCode, stdout }: ApiSandboxExec): string =>
  `${status} ${exitCode} ${stdout}`;
const isPassing = (status: string): boolean => /^(?:pending|pausing|stopping)$/u.test(status);

/** A sandbox with a counter in its memory and a log on its disk, used by one caller. */
export class CountingSandbox implements Workload {
  readonly #context: WorkloadContext;
  readonly #id: string;
  readonly #ledger: RunLedger;
  /** Names the file of the counting process, in memory, and tells it from that of another start. */
  #token: string;
  /** The lowest value that the counter can have. */
  #counted = 0;
  /** The sandbox was started since the token was read, so its memory began anew. */
  #wasStarted = false;
  /** When the sandbox last lost its memory with its host, as far as this caller knows. */
  #lostAt: string | undefined;
  /** Records of commands that ended, as they were reported. */
  readonly #ended: ApiSandboxExec[] = [];
  readonly #forks = new Set<string>();

  private constructor(context: WorkloadContext, id: string, token: string) {
    this.#context = context;
    this.#id = id;
    this.#token = token;
    this.#ledger = new RunLedger(`sandbox-${id}`, context.findings);
  }

  static async create(context: WorkloadContext): Promise<CountingSandbox> {
    const { sandbox_id: id } = await createSandbox(context.api);
    const sandbox = new CountingSandbox(context, id, '');
    await sandbox.#count();
    return sandbox;
  }

  get id(): string {
    return this.#id;
  }

  async run(over: AbortSignal): Promise<void> {
    const { random } = this.#context;
    while (!over.aborted) {
      const way = random.weighted({ append: 8, look: 6, pause: 3, fork: 1, restart: 1, record: 2 });
      if (way === 'append') await this.#append();
      else if (way === 'look') await this.#look(this.#id);
      else if (way === 'pause') await this.#pauseAndResume();
      else if (way === 'fork') await this.#fork();
      else if (way === 'restart') await this.#command('stop');
      else await this.#checkRecord();
      await this.#tend();
      await sleep(random.integer(PAUSE_MS.min, PAUSE_MS.max));
    }
  }

  async check(): Promise<void> {
    await this.#bringUp();
    await this.#insist('the counter', () => this.#look(this.#id));
    const log = await this.#insist('the log of a sandbox', async () => {
      const exec = await this.#exec(this.#id, `touch ${LOG}; cat ${LOG}`);
      return exec?.status === 'completed' && { text: exec.stdout ?? '' };
    });
    this.#ledger.check(log.text);
    const machines = await machinesOf([this.#id]);
    if (machines.length > 1) {
      this.#context.findings.report(`sandbox ${this.#id} has ${machines.length} machines`);
    }
    await this.#checkRecord();
    await this.#removeForks();
    if (this.#wasStarted || this.#token === '') await this.#count();
  }

  /** Deletes it. */
  async remove(): Promise<void> {
    await this.#removeForks();
    await removeSandbox(this.#context, this.#id);
  }

  async #call(
    method: string,
    path: string,
    body?: unknown,
    expected: readonly string[] = STATES,
  ): Promise<Attempt> {
    const { findings, api } = this.#context;
    return attempt(findings, api, [method, path], { body, expected });
  }

  async #state(id: string): Promise<ApiSandbox | undefined> {
    const { code, data } = await this.#call('GET', sandboxPath(id), undefined, ['not_found']);
    if (code === 'not_found' && id === this.#id) {
      this.#context.findings.report(`sandbox ${id} is not found`);
    }
    return code === 'ok' ? (data as ApiSandbox) : undefined;
  }

  /** Runs a command to its end. @returns undefined when its outcome is unknown */
  async #exec(id: string, command: string, told?: string): Promise<ApiSandboxExec | undefined> {
    const { code, exec } = await execToEnd(this.#context, id, command);
    if (told !== undefined) {
      const isDone = exec?.status === 'completed' && exec.exit_code === 0;
      this.#ledger.tell(told, exec === undefined ? code : isDone ? 'ok' : 'failed');
    }
    if (exec !== undefined && id === this.#id) this.#remember(exec);
    return exec;
  }

  #remember(exec: ApiSandboxExec): void {
    this.#ended.push(exec);
    if (this.#ended.length > EXECS_REMEMBERED) this.#ended.shift();
  }

  async #append(): Promise<void> {
    const id = this.#ledger.newId();
    await this.#exec(this.#id, `echo ${id} >> ${LOG} && sync ${LOG}`, id);
  }

  /** Asserts that the record of an ended command has not changed. */
  async #checkRecord(): Promise<void> {
    if (this.#ended.length === 0) return;
    const { findings, random } = this.#context;
    const exec = random.pick(this.#ended);
    const path = `${sandboxPath(this.#id)}/execs/${exec.exec_id}`;
    const { code, data } = await this.#call('GET', path, undefined, ['not_found']);
    const isSame = code !== 'ok' || outcomeOf(data as ApiSandboxExec) === outcomeOf(exec);
    // Those since its last change of state are lost with its host (docs/operations.md).
    if (code === 'not_found' && (exec.finished_at ?? '') < (this.#lostAt ?? '')) {
      findings.count('records lost with their host');
    } else if (code === 'not_found' || !isSame) {
      findings.count('losses');
      findings.report(
        `the record of ${exec.exec_id} was ${JSON.stringify(exec)}, is ${code} ${JSON.stringify(data)}`,
      );
    }
  }

  /** Starts the counter anew. */
  async #count(): Promise<void> {
    const token = randomBytes(6).toString('hex');
    this.#wasStarted = false;
    this.#token = '';
    const exec = await this.#exec(this.#id, beginCounting(`/run/${token}`, 0.3));
    if (exec?.status !== 'completed') return;
    this.#token = token;
    this.#counted = 0;
  }

  /** Compares the counter with its former value. @returns whether it could be read */
  async #look(id: string): Promise<boolean> {
    const [token, counted, wasStarted] = [this.#token, this.#counted, this.#wasStarted];
    if (token === '') return true;
    const exec = await this.#exec(id, lastCount(`/run/${token}`));
    if (exec?.status !== 'completed') return false;
    if (wasStarted && id === this.#id) return true;
    const { findings } = this.#context;
    const counter = (exec.stdout ?? '').trim();
    if (exec.exit_code !== 0 || !(Number(counter) >= counted)) {
      const isLost = await this.#saysLost(id);
      if (isLost !== false) return isLost === true;
      findings.count('losses');
      findings.report(
        `memory of ${id}: ${token} was at ${counted} or more, and now ${JSON.stringify(exec)}`,
      );
      if (id === this.#id) this.#token = '';
      return true;
    }
    if (id === this.#id) this.#counted = Math.max(counted, Number(counter));
    findings.count('counters read');
    return true;
  }

  /** Whether its record says that its memory was lost with its host, and has not said so before. */
  async #saysLost(id: string): Promise<boolean | undefined> {
    const sandbox = await this.#state(id);
    if (sandbox === undefined) return undefined;
    return id === this.#id ? this.#noteLoss(sandbox) : sandbox.exit_reason === 'host_lost';
  }

  /** @returns whether it runs from its disk since its host was lost, and this is news */
  #noteLoss({ status, exit_reason: reason, running_at: at }: ApiSandbox): boolean {
    if (status !== 'running' || reason !== 'host_lost' || at === this.#lostAt) return false;
    this.#lostAt = at;
    this.#wasStarted = true;
    this.#context.findings.count('memory lost with its host, and said so');
    return true;
  }

  async #command(name: 'start' | 'stop' | 'pause' | 'resume'): Promise<Attempt> {
    if (name === 'start' || name === 'stop') this.#wasStarted = true;
    const { findings } = this.#context;
    const answer = await this.#call('POST', `${sandboxPath(this.#id)}/${name}?wait=true`);
    if (answer.code === 'ok') findings.count(`acknowledged: ${name}`);
    return answer;
  }

  async #pauseAndResume(): Promise<void> {
    const { code, data } = await this.#command('pause');
    if (code !== 'ok' || (data as ApiSandbox).status !== 'paused') return;
    await this.#command('resume');
  }

  /** Makes the sandbox run again. Its state must say whether its memory survived. */
  async #tend(): Promise<void> {
    const sandbox = await this.#state(this.#id);
    if (sandbox === undefined || isPassing(sandbox.status)) return;
    this.#noteLoss(sandbox);
    const { status } = sandbox;
    if (status === 'paused') await this.#command('resume');
    else if (status !== 'running') await this.#command('start');
    else if (this.#wasStarted || this.#token === '') await this.#count();
  }

  async #bringUp(): Promise<void> {
    await waitFor(
      `sandbox ${this.#id} to run`,
      async () => {
        await this.#tend();
        return (await this.#state(this.#id))?.status === 'running';
      },
      SETTLES_WITHIN_MS,
    );
  }

  /** Waits for what a running sandbox shows. Its machine may end late, by what a fault began. */
  #insist<T>(what: string, read: () => Promise<T | false>): Promise<T> {
    const readOrTend = async (): Promise<T | false> => {
      const value = await read();
      if (value === false) await this.#tend();
      return value;
    };
    return waitFor<T>(what, readOrTend, SETTLES_WITHIN_MS);
  }

  /** Asserts that a fork starts from its source's memory. */
  async #fork(): Promise<void> {
    if (this.#wasStarted || this.#token === '') return;
    const name = `fork-${randomBytes(6).toString('hex')}`;
    this.#forks.add(name);
    const path = `${sandboxPath(this.#id)}/fork?wait=true`;
    const { code, data } = await this.#call('POST', path, { name });
    if (code !== 'ok') return;
    this.#context.findings.count('acknowledged: fork');
    const { sandbox_id: child, status } = data as ApiSandbox;
    if (status === 'running') await this.#look(child);
  }

  async #removeForks(): Promise<void> {
    const { sandboxes } = await succeed<{ sandboxes: ApiSandbox[] }>(this.#context, [
      'GET',
      '/api/sandboxes',
    ]);
    for (const { sandbox_id: id, name } of sandboxes) {
      if (this.#forks.has(name)) await removeSandbox(this.#context, id);
    }
    this.#forks.clear();
  }
}
