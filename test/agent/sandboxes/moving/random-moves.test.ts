/*
 * Three hosts that share their sandboxes' storage, under random actions, orders and kills: whatever
 * a caller was told stays true, each sandbox is at one host, and nothing is left behind. The seed
 * fixes the choices, not the scheduling of the processes. BERTH_TEST_SEED=n repeats them.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { newSandboxId } from '../../../../shared/ids.ts';
import type { SandboxExecRecord } from '../../../../shared/schemas/sandbox-record.ts';
import { Random } from '../../../helpers/random.ts';
import { isFull } from '../../../helpers/full.ts';
import { checkNothingLeft, remove, rested, upAgain } from '../../../helpers/moved-sandboxes.ts';
import { AgentDied, type Asked, type MovingHost } from '../../../helpers/moving-agents.ts';
import { MovingRegion } from '../../../helpers/moving-region.ts';

const STEPS = isFull ? 2_000 : 120;
const seed = Number(process.env['BERTH_TEST_SEED'] ?? Math.floor(Date.now() / 1000) % 100_000);
const SANDBOXES_MAX = 8;

/** A sandbox as its callers know it. */
interface Known {
  readonly id: string;
  /** `maybe`: nobody was told what came of its creation or deletion. */
  fate: 'there' | 'maybe' | 'gone';
  /** Files on its disk that were written, by path. */
  readonly files: Map<string, string>;
  readonly execs: Map<string, SandboxExecRecord>;
}

const steps = {
  ...{ create: 8, write: 14, pause: 4, resume: 5, start: 5, stop: 3, fork: 4, delete: 2 },
  ...{ drain: 4, uncordon: 7, kill: 2, arm: 6, startHost: 10, fence: 4, wait: 8 },
};
type Step = keyof typeof steps;

interface Outcome {
  readonly outcome: 'done' | 'refused' | 'unknown';
  readonly value?: unknown;
}

class Run {
  readonly #region: MovingRegion;
  readonly #random = new Random(seed, 'moves');
  readonly #known: Known[] = [];
  /** Failpoints that some host has passed. */
  readonly #points = new Set<string>();
  readonly trace: string[] = [];

  constructor(region: MovingRegion) {
    this.#region = region;
  }

  get #present(): Known[] {
    return this.#known.filter(({ fate }) => fate !== 'gone');
  }

  async step(): Promise<void> {
    const step = this.#random.weighted(steps);
    const host = this.#random.pick(this.#region.hosts);
    const known = this.#present.length === 0 ? undefined : this.#random.pick(this.#present);
    this.trace.push(`${step} ${host.hostId} ${known?.id ?? ''}`);
    if (step === 'create') return this.#create(host);
    if (await this.#happen(step, host)) return;
    const at = known && (await this.#hostOf(known.id));
    if (known === undefined || at === undefined) return;
    await this.#act(step, at, known);
  }

  /** Everything that callers were told is so; then all is deleted. */
  async check(t: ExecutionContext): Promise<void> {
    for (const host of this.#region.hosts) await upAgain(this.#region, host);
    // Forks before their sources, which cannot go before them.
    for (const known of this.#present.toReversed()) {
      const { id, fate, files, execs } = known;
      if (fate === 'maybe' && (await this.#region.hostsOf(id)).length === 0) {
        const places = this.#region.placesOf(id);
        if (places.length === 0 && (await this.#region.hostOf(id)) === undefined) continue;
      }
      const { host, row } = await rested(this.#region, id);
      t.deepEqual(this.#region.placesOf(row.vmId), [`hosts/${host.hostId}`]);
      const kept = await host.ask<SandboxExecRecord[]>({ call: 'execs', id });
      for (const exec of execs.values())
        t.deepEqual(
          kept.find((each) => each.id === exec.id),
          exec,
        );
      const action = row.state === 'paused' ? 'resume' : 'start';
      if (row.state !== 'running') await host.ask({ call: 'act', id, action });
      for (const [path, text] of files)
        t.is((await host.exec(id, `cat ${path}`)).stdout, `${text}\n`);
      await remove(host, id);
    }
    await checkNothingLeft(t, this.#region);
  }

  async #create(host: MovingHost): Promise<void> {
    if (this.#present.length >= SANDBOXES_MAX) return;
    await this.#bear(host, (id) => ({ call: 'create', id }), new Map());
  }

  /** Faults and orders. @returns whether the step was one */
  async #happen(step: Step, host: MovingHost): Promise<boolean> {
    const region = this.#region;
    if (step === 'drain') await region.order(host, 'drained');
    else if (step === 'uncordon') await region.order(host, 'up');
    else if (step === 'kill') await host.kill();
    else if (step === 'startHost') await this.#start(host);
    else if (step === 'wait') await sleep(this.#random.integer(10, 150));
    else if (step === 'arm') await this.#arm(host);
    else if (step === 'fence') {
      if (!host.isRunning) await region.fence(host);
    } else return false;
    return true;
  }

  async #start(host: MovingHost): Promise<void> {
    if (host.isRunning) return;
    const isArmed = this.#points.size > 0 && this.#random.fraction() < 0.3;
    await host.start(
      isArmed ? { point: this.#point(), nth: this.#random.integer(1, 2) } : undefined,
    );
  }

  async #arm(host: MovingHost): Promise<void> {
    if (!host.isRunning) return;
    const reached = await host.ask<string[]>({ call: 'takeReached' }).catch(() => []);
    for (const point of reached) this.#points.add(point);
    if (this.#points.size === 0) return;
    await host.attempt({
      call: 'arm',
      armed: { point: this.#point(), nth: this.#random.integer(1, 3) },
    });
  }

  #point(): string {
    const point = this.#random.pick([...this.#points].toSorted());
    this.trace.push(`  at '${point}'`);
    return point;
  }

  async #act(step: Step, host: MovingHost, known: Known): Promise<void> {
    const { id } = known;
    if (step === 'write') return this.#write(host, known);
    if (step === 'fork') {
      if (this.#present.length >= SANDBOXES_MAX) return;
      const fork = (child: string): Asked => ({ call: 'fork', id: child, from: id });
      return this.#bear(host, fork, new Map(known.files));
    }
    if (step === 'delete') {
      const { fate } = known;
      known.fate = 'maybe';
      const { outcome, value: forks } = await this.#ask(host, { call: 'delete', id });
      if (outcome === 'refused' || forks !== undefined) known.fate = fate;
      else if (outcome === 'done') known.fate = 'gone';
      return;
    }
    if (step === 'pause' || step === 'resume' || step === 'start' || step === 'stop')
      await this.#ask(host, { call: 'act', id, action: step });
  }

  async #write(host: MovingHost, { id, files, execs }: Known): Promise<void> {
    const text = newSandboxId();
    const path = `/root/${this.#random.integer(1, 3)}`;
    const former = files.get(path);
    files.delete(path); // Until it is answered both the former text and the new one may be there.
    try {
      const { exec } = await host.exec(id, `echo ${text} > ${path}`);
      if (exec.status !== 'running') execs.set(exec.id, exec);
      if (exec.status === 'completed') files.set(path, text);
    } catch (error) {
      if (isRefusal(error) && former !== undefined) files.set(path, former);
    }
  }

  async #bear(
    host: MovingHost,
    call: (id: string) => Asked,
    files: Map<string, string>,
  ): Promise<void> {
    const known: Known = { id: newSandboxId(), fate: 'maybe', files, execs: new Map() };
    this.#known.push(known);
    const { outcome } = await this.#ask(host, call(known.id));
    if (outcome === 'done') known.fate = 'there';
    if (outcome === 'refused') known.fate = 'gone';
  }

  async #ask(host: MovingHost, asked: Asked): Promise<Outcome> {
    try {
      return { outcome: 'done', value: await host.ask(asked) };
    } catch (error) {
      if (error instanceof AgentDied) return { outcome: 'unknown' };
      if (isRefusal(error)) return { outcome: 'refused' };
      throw error;
    }
  }

  async #hostOf(id: string): Promise<MovingHost | undefined> {
    const hostId = await this.#region.hostOf(id);
    return this.#region.hosts.find((host) => host.hostId === hostId && host.isRunning);
  }
}

/** Whether an agent has answered that it did nothing. */
const isRefusal = (error: unknown): boolean => (error as { code?: string }).code !== undefined;

test('whatever is asked, ordered and killed, each sandbox is whole and at one host', async (t) => {
  t.timeout((isFull ? 60 : 10) * 60_000);
  await using region = await MovingRegion.open({ hosts: 3 });
  const run = new Run(region);
  t.log({ seed });
  try {
    for (let step = 0; step < STEPS; step += 1) await run.step();
    await run.check(t);
  } catch (error) {
    t.log(run.trace.slice(-60).join('\n'));
    throw error;
  }
  t.is(await region.faults(), '');
});
