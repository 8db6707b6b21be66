import { setTimeout as sleep } from 'node:timers/promises';
import type { ExecResult } from '../../../shared/schemas/exec.ts';
import { type Attempt, attempt } from '../attempt.ts';
import { RunLedger } from '../run-ledger.ts';
import { succeed, type Workload, type WorkloadContext } from '../workload.ts';

const PAUSE_MS = { min: 20, max: 120 } as const;
/** How often a call with an Idempotency-Key is sent until an answer is conclusive. */
const REPEATS_MAX = 4;
const REPEAT_AFTER_MS = 700;

/** How often the command may have run, given its answer (`RunLedger`). */
const verdictOf = ({ code, data }: Attempt): string =>
  code === 'ok' && (data as ExecResult).exitCode !== 0 ? 'failed' : code;

/** Runs commands that append their own lines to a file on one disk, or on two at once. */
export class Commands implements Workload {
  readonly #context: WorkloadContext;
  readonly #file: string;
  readonly #ledgers: ReadonlyMap<string, RunLedger>;

  /** @param file a file on each of the disks that nothing else writes */
  constructor(context: WorkloadContext, diskIds: readonly string[], file: string) {
    this.#context = context;
    this.#file = file;
    this.#ledgers = new Map(
      diskIds.map((id) => [id, new RunLedger(`${file}-${id}`, context.findings)]),
    );
  }

  async run(over: AbortSignal): Promise<void> {
    const { random } = this.#context;
    while (!over.aborted) {
      const way = random.weighted({ one: 6, keyed: 2, two: 2 });
      if (way === 'one') await this.#runOnOne();
      else if (way === 'keyed') await this.#runKeyed(over);
      else await this.#runOnTwo();
      await sleep(random.integer(PAUSE_MS.min, PAUSE_MS.max));
    }
  }

  async check(): Promise<void> {
    for (const [diskId, ledger] of this.#ledgers) {
      const path = `/api/disks/${diskId}/exec`;
      const body = { command: `touch ${this.#file}; cat ${this.#file}` };
      const { stdout } = await succeed<ExecResult>(this.#context, ['POST', path], { body });
      ledger.check(stdout);
    }
  }

  #append(id: string, file: string): string {
    const command = `echo ${id} >> ${file}`;
    return this.#context.needsSync ? `${command} && sync ${file}` : command;
  }

  #pick(): [diskId: string, ledger: RunLedger] {
    return this.#context.random.pick([...this.#ledgers]);
  }

  async #runOnOne(): Promise<void> {
    const [diskId, ledger] = this.#pick();
    const id = ledger.newId();
    const body = { command: this.#append(id, this.#file) };
    const path = `/api/disks/${diskId}/exec`;
    const { findings, api } = this.#context;
    ledger.tell(id, verdictOf(await attempt(findings, api, ['POST', path], { body })));
  }

  /** Sends one call with an Idempotency-Key repeatedly: it must run once. */
  async #runKeyed(over: AbortSignal): Promise<void> {
    const [diskId, ledger] = this.#pick();
    const id = ledger.newId();
    const body = { command: this.#append(id, this.#file) };
    const headers = { 'idempotency-key': id };
    const path = `/api/disks/${diskId}/exec`;
    const { findings, api } = this.#context;
    let mayHaveRun = false;
    for (let count = 1; ; count += 1) {
      const answer = await attempt(findings, api, ['POST', path], { body, headers, over });
      const { status } = answer;
      const says = status !== 0 && status !== 503;
      if (says || count === REPEATS_MAX || over.aborted) {
        // An earlier attempt whose connection broke may have run.
        const verdict = verdictOf(answer);
        ledger.tell(id, mayHaveRun && verdict !== 'ok' ? 'cut' : verdict);
        return;
      }
      mayHaveRun ||= status === 0;
      await sleep(REPEAT_AFTER_MS);
    }
  }

  async #runOnTwo(): Promise<void> {
    const [first, second] = [this.#pick(), this.#pick()];
    if (first[0] === second[0]) return;
    const [id, otherId] = [first[1].newId(), second[1].newId()];
    const command = `${this.#append(id, `a/${this.#file}`)} && ${this.#append(otherId, `b/${this.#file}`)}`;
    const body = { disks: { a: { disk: first[0] }, b: { disk: second[0] } }, command };
    const { findings, api } = this.#context;
    const verdict = verdictOf(await attempt(findings, api, ['POST', '/api/exec'], { body }));
    first[1].tell(id, verdict);
    second[1].tell(otherId, verdict);
  }
}
