import { setTimeout as sleep } from 'node:timers/promises';
import { toError } from '../../shared/errors.ts';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk } from '../helpers/disks.ts';
import { ObjectClient } from '../helpers/objects.ts';
import { runsMachines } from '../helpers/sandboxes.ts';
import { waitFor } from '../helpers/wait.ts';
import { Findings } from './findings.ts';
import { checkClock } from './guest-clocks.ts';
import type { Fault } from './plan.ts';
import { Probe } from './probe.ts';
import { Random } from '../helpers/random.ts';
import type { Lifted, System } from './system.ts';
import type { Workload, WorkloadContext } from './workload.ts';
import { Commands } from './workloads/commands.ts';
import { Databases } from './workloads/databases.ts';
import { Objects } from './workloads/objects.ts';
import { Records } from './workloads/records.ts';
import { CountingSandbox } from './workloads/sandboxes.ts';

const SANDBOXES = 2;
const COMMAND_CALLERS = 3;
const OBJECT_CALLERS = 2;
const OBJECT_KEYS = 6;
const RECOVERS_WITHIN_MS = 120_000;

interface RoundOptions {
  readonly roundMs: number;
  /** Kinds of faults to draw from. */
  readonly only?: readonly string[] | undefined;
  /** Ends the round early. Its promises are still checked. */
  readonly signal?: AbortSignal;
}

/** A fault that was injected, and how the system came back. */
export interface InjectedFault {
  readonly fault: Fault;
  /** Since the beginning of the run. */
  readonly atMs: number;
  /** False when there was nothing to hit, for example because no helper program ran. */
  readonly hasHit: boolean;
  /** From its end until callers were served; undefined when the round ended before. */
  readonly recoveryMs: number | undefined;
}

/** @returns false when the signal came first */
async function sleepUnless(signal: AbortSignal | undefined, ms: number): Promise<boolean> {
  try {
    await sleep(ms, undefined, { signal });
    return true;
  } catch (error) {
    if (signal?.aborted !== true) throw error;
    return false;
  }
}

type NewContext = (stream: string) => WorkloadContext;

/** Everything that callers do during a run, on disks of its own. */
async function createWorkloads(
  system: System,
  api: ApiClient,
  newContext: NewContext,
): Promise<{ workloads: Workload[]; sandboxes: CountingSandbox[]; databases?: Databases }> {
  const disks = await Promise.all(Array.from({ length: 4 }, () => createDisk(api)));
  const diskIds = disks.map(({ id }) => id);
  const sandboxes: CountingSandbox[] = [];
  for (let index = 0; index < SANDBOXES; index += 1) {
    sandboxes.push(await CountingSandbox.create(newContext(`sandbox ${index}`)));
  }
  const commands = Array.from({ length: COMMAND_CALLERS }, (_, index) => {
    return new Commands(newContext(`commands ${index}`), diskIds, `caller${index}`);
  });
  const objects = Array.from({ length: OBJECT_CALLERS }, (_, index) => {
    const options = { diskIds: diskIds.slice(0, 2), prefix: `writer${index}`, keys: OBJECT_KEYS };
    return new Objects(newContext(`objects ${index}`), system.objectUrls, options);
  });
  const records = new Records(newContext('records'), () => system.diskFolders());
  const workloads = [...sandboxes, ...commands, ...objects, records];
  // Hosts that lose their storage take the memory maps of databases away.
  if (system.needsSync || !runsMachines) return { workloads, sandboxes };
  const databases = await Databases.create(newContext('databases'));
  return { workloads: [...workloads, databases], sandboxes, databases };
}

/** A whole system under faults, and the promises that it made meanwhile. */
export class ChaosRun {
  readonly findings: Findings;
  readonly injected: InjectedFault[] = [];
  /** How long after each round it took until callers were served. */
  readonly recoveriesMs: number[] = [];
  readonly #api: ApiClient;
  readonly #system: System;
  readonly #probe: Probe;
  readonly #randoms: readonly Random[];
  readonly #workloads: readonly Workload[];
  readonly #sandboxes: readonly CountingSandbox[];
  readonly #databases: Databases | undefined;

  private constructor(
    parts: {
      api: ApiClient;
      system: System;
      findings: Findings;
      probe: Probe;
      randoms: readonly Random[];
    },
    { workloads, sandboxes, databases }: Awaited<ReturnType<typeof createWorkloads>>,
  ) {
    this.#api = parts.api;
    this.#system = parts.system;
    this.findings = parts.findings;
    this.#probe = parts.probe;
    this.#randoms = parts.randoms;
    this.#workloads = workloads;
    this.#sandboxes = sandboxes;
    this.#databases = databases;
  }

  /** Starts a system and its callers, without faults yet. */
  static async start(startSystem: (findings: Findings) => Promise<System>): Promise<ChaosRun> {
    const findings = new Findings();
    const system = await startSystem(findings);
    try {
      const api = await system.newClient();
      const randoms: Random[] = [];
      const newContext: NewContext = (stream) => {
        const random = new Random('', stream);
        randoms.push(random);
        return { api, findings, random, needsSync: system.needsSync };
      };
      const { id } = await createDisk(api);
      await new ObjectClient(api.baseUrl, api.key).put(id, 'probe', 'probe');
      const workloads = await createWorkloads(system, api, newContext);
      const probe = new Probe(api, id);
      return new ChaosRun({ api, system, findings, probe, randoms }, workloads);
    } catch (error) {
      await system.stop();
      throw error;
    }
  }

  /** Runs a round: faults under load, then recovery, then a check of every promise. */
  async round(seed: number, round: number, options: RoundOptions): Promise<void> {
    const { roundMs, only, signal } = options;
    for (const random of this.#randoms) random.reseed(`${seed} ${round}`);
    const over = new AbortController();
    const working = this.#workloads.map((workload) => workload.run(over.signal));
    const beganAt = performance.now();
    const faults = this.#system.plan(seed, round, roundMs, only).map(async (fault) => {
      const isDue = await sleepUnless(signal, fault.atMs);
      return isDue ? this.#inject(fault) : { fault, liftedAt: undefined };
    });
    await sleepUnless(signal, roundMs);
    const lifted = await Promise.all(faults);
    over.abort();
    await this.#recover();
    this.#guard(await Promise.allSettled(working));
    this.#guard(await Promise.allSettled(this.#workloads.map((workload) => workload.check())));
    for (const { fault, liftedAt } of lifted) {
      this.injected.push({
        fault,
        atMs: Math.round(beganAt + fault.atMs - this.findings.beganAt),
        hasHit: liftedAt !== undefined,
        recoveryMs: liftedAt === undefined ? undefined : this.#probe.recoveryMs(liftedAt),
      });
    }
  }

  /** @param logs directory to which the logs are copied if there are findings */
  async stop(logs: string): Promise<void> {
    const users = [...this.#sandboxes, ...(this.#databases === undefined ? [] : [this.#databases])];
    this.#guard(await Promise.allSettled(users.map((user) => user.remove())));
    await this.#probe[Symbol.asyncDispose]();
    if (this.findings.broken.length > 0) await this.#system.saveLogs(logs);
    await this.#system.stop();
  }

  async #inject(fault: Fault): Promise<{ fault: Fault; liftedAt: Lifted }> {
    const { kind, host, lastsMs } = fault;
    try {
      const liftedAt = await this.#system.inject(fault);
      this.findings.count(`fault: ${kind}${liftedAt === undefined ? ' (missed)' : ''}`);
      if (liftedAt !== undefined) {
        this.#databases?.disturbed();
        await this.#checkClocks();
      }
      return { fault, liftedAt };
    } catch (error) {
      const what = `${kind} of host ${host} for ${lastsMs} ms`;
      this.findings.report(`the fault "${what}" could not be injected: ${toError(error).message}`);
      return { fault, liftedAt: undefined };
    }
  }

  async #checkClocks(): Promise<void> {
    await Promise.all(this.#sandboxes.map(({ id }) => checkClock(this.#api, id, this.findings)));
  }

  async #recover(): Promise<void> {
    const since = performance.now();
    try {
      await this.#system.mend();
      const ms = await waitFor(
        'callers to be served',
        async () => this.#probe.recoveryMs(since),
        RECOVERS_WITHIN_MS,
      );
      this.recoveriesMs.push(Math.round(ms));
    } catch (error) {
      this.findings.report(`no recovery: ${toError(error).message}`);
    }
  }

  #guard(results: readonly PromiseSettledResult<void>[]): void {
    for (const result of results) {
      if (result.status === 'fulfilled') continue;
      this.findings.report(toError(result.reason as unknown).message);
    }
  }
}
