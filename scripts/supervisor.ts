/**
 * Runs the Procfile. There is one supervisor per checkout; it first ends what a killed one left.
 */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { readEnvFile, required, type Env } from './env-file.ts';
import { paths } from './local-paths.ts';
import { endProcess, identify, isAlive } from '../shared/process-id.ts';
import { howToStop, parseProcfile, type ServiceSpec } from './procfile.ts';
import { Service } from './service.ts';
import { type Part, unknownInFile, variablesFor } from '../shared/settings/known-settings.ts';
import { readStackState, removeStackState, writeStackState } from './stack-state.ts';

export const READY_WITHIN_MS = 60_000;
/** Longer than all processes together may take to stop. */
export const STOP_WITHIN_MS = 200_000;
/** A supervisor that seems to have ended holds its claim until its last thread is gone. */
const CLAIM_WITHIN_MS = 2000;

export class Supervisor {
  readonly #services: Service[];
  #ready = false;
  #stopped: Promise<void> | undefined;

  private constructor(specs: ServiceSpec[], config: Env, report: (line: string) => void) {
    const path = `${join(paths.root, 'node_modules/.bin')}:${process.env['PATH'] ?? ''}`;
    const env = { ...process.env, ...config, PATH: path };
    this.#services = specs.map(
      (spec) => new Service(spec, variablesFor(partOf(spec), env), report, () => this.#record()),
    );
  }

  /** @throws Error that says why this checkout's stack cannot be started now */
  static async claim(report: (line: string) => void): Promise<Supervisor> {
    await claimCheckout();
    const config = await readEnvFile(paths.config);
    const unknown = unknownInFile(Object.keys(config));
    if (unknown.length > 0) throw new Error(`${paths.config}: ${unknown.join('; ')}`);
    const specs = parseProcfile(await readFile(paths.procfile, 'utf8'), config);
    await endLeftovers(report);
    await checkPortsAreFree(config);
    const supervisor = new Supervisor(specs, config, report);
    supervisor.#record();
    return supervisor;
  }

  /** Starts the processes in order. When one fails, those that were started are stopped. */
  async start(): Promise<void> {
    const deadlineMs = performance.now() + READY_WITHIN_MS;
    try {
      for (const service of this.#services) {
        if (this.#stopped !== undefined) throw new Error('stopped before everything was ready.');
        service.start();
        await service.waitUntilReady(deadlineMs);
      }
    } catch (error) {
      await this.stop();
      throw error;
    }
    this.#ready = true;
    this.#record();
  }

  /** Stops the processes in reverse order. */
  async stop(): Promise<void> {
    this.#stopped ??= this.#stopAll();
    return this.#stopped;
  }

  /** Kills all processes at once, while `stop` is under way. */
  killAll(): void {
    for (const service of this.#services) service.kill();
  }

  async #stopAll(): Promise<void> {
    for (const service of this.#services.toReversed()) await service.stop();
    removeStackState();
  }

  #record(): void {
    const supervisor = identify(process.pid);
    if (supervisor === undefined) throw new Error('/proc is not mounted.');
    const processes = this.#services.flatMap(({ spec, id }) =>
      id === undefined ? [] : [[spec.name, id] as const],
    );
    writeStackState({ supervisor, ready: this.#ready, processes });
  }
}

/** Other processes, such as Redis, get no settings: secrets are among them. */
const partOf = ({ name }: ServiceSpec): Part | undefined =>
  name === 'control' || name === 'agent' ? name : undefined;

/** Ends the processes that a killed supervisor left running, the last started first. */
export async function endLeftovers(report: (line: string) => void): Promise<void> {
  const { state } = await readStackState();
  for (const [name, id] of state?.processes.toReversed() ?? []) {
    if (!isAlive(id)) continue;
    report(`ending ${name} (process ${id.pid}), which an earlier run left`);
    await endProcess(id, howToStop(name));
  }
  removeStackState();
}

/** Claims the checkout by an abstract socket, which the kernel closes however this process ends. */
export async function claimCheckout(): Promise<void> {
  const digest = createHash('sha256').update(paths.root).digest('hex').slice(0, 32);
  const deadline = performance.now() + CLAIM_WITHIN_MS;
  while (!(await tryListen(`\0berth-${digest}`))) {
    if (performance.now() > deadline) {
      throw new Error('Berth is being started or stopped in this checkout already: try again.');
    }
    await sleep(50);
  }
}

async function tryListen(path: string): Promise<boolean> {
  const server = createServer().unref();
  return new Promise((resolve) => {
    server.once('error', () => resolve(false));
    server.listen(path, () => resolve(true));
  });
}

async function checkPortsAreFree(config: Env): Promise<void> {
  const hosts: Env = {
    CONTROL_PORT: 'CONTROL_HOST',
    AGENT_PORT: 'AGENT_HOST',
    INGRESS_PORT: 'AGENT_HOST',
  };
  for (const name of Object.keys(config).filter((key) => key.endsWith('_PORT'))) {
    const port = required(config, name);
    const host = config[hosts[name] ?? ''] ?? '127.0.0.1';
    const problem = await listenProblem(Number(port), host);
    if (problem === 'EADDRINUSE') {
      throw new Error(
        `port ${port} (${name}) is in use by another program: stop that program, ` +
          `or choose another port, for example ${name}=${Number(port) + 1000} ./scripts/up`,
      );
    }
    if (problem !== undefined) throw new Error(`cannot listen on ${host}:${port} (${problem})`);
  }
}

async function listenProblem(port: number, host: string): Promise<string | undefined> {
  const server = createServer();
  return new Promise((resolve) => {
    server.once('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message));
    server.listen(port, host, () => server.close(() => resolve(undefined)));
  });
}

function reportWithTime(line: string): void {
  console.error(`${new Date().toISOString()} ${line}`);
}

/** Runs without a terminal: reports to the `up` that started it when all is ready, and stays. */
async function superviseDetached(): Promise<void> {
  const supervisor = await Supervisor.claim(reportWithTime);
  const stop = (): void => {
    supervisor.stop().then(
      () => process.exit(),
      (error: unknown) => {
        console.error(error);
        process.exit(1);
      },
    );
  };
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, stop);
  process.once('disconnect', stop);
  await supervisor.start();
  process.off('disconnect', stop);
  process.send?.('ready');
}

if (import.meta.main) {
  try {
    await superviseDetached();
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
    process.exit(1);
  }
}
