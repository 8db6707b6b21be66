import assert from 'node:assert';
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseEnv } from 'node:util';
import { type Env, readEnvFile, writeEnvFile } from '../../scripts/env-file.ts';
import type { Role } from '../../scripts/install-roles.ts';
import { Daemon, type Environment } from './daemon.ts';
import type { NetworkMachine } from './machine-network.ts';
import { waitFor } from './wait.ts';

const COMPILE_CACHE = join(import.meta.dirname, '../../.local/compile-cache');

/**
 * The command line and the environment of a unit that `scripts/install` has written.
 * @param root what it was given as `--root`
 */
async function readUnit(
  role: Role,
  root: string,
): Promise<{ command: string[]; environment: Environment }> {
  const text = await readFile(join(root, `etc/systemd/system/berth-${role}.service`), 'utf8');
  const [, line = ''] = /^ExecStart=(.*)$/mu.exec(text) ?? [];
  assert(line !== '', `the unit of ${role} starts nothing`);
  const configuration = join(root, 'etc/berth');
  const command = line
    .split(' ')
    .map((word) => word.replace(/^(?:%d|\/etc\/berth)\//u, `${configuration}/`));
  const [, assignments = ''] = /^Environment=(.*)$/mu.exec(text) ?? [];
  const given = parseEnv(assignments.replaceAll(' ', '\n')) as Environment;
  return { command, environment: { ...given, NODE_COMPILE_CACHE: COMPILE_CACHE } };
}

/** A service on a machine of a cluster, which runs as its unit says. */
export class ClusterNode {
  readonly machine: NetworkMachine;
  readonly role: Role;
  readonly root: string;
  readonly #logPath: string;
  readonly #isReady: (node: ClusterNode) => Promise<boolean>;
  #daemon: Daemon | undefined;

  /** @param isReady looks once */
  constructor(
    machine: NetworkMachine,
    role: Role,
    directory: string,
    isReady: (node: ClusterNode) => Promise<boolean>,
  ) {
    this.machine = machine;
    this.role = role;
    this.root = join(directory, 'roots', machine.name);
    this.#logPath = join(directory, `${machine.name}.log`);
    this.#isReady = isReady;
  }

  get daemon(): Daemon {
    assert(this.#daemon !== undefined, `${this.machine.name} was not started yet`);
    return this.#daemon;
  }

  get #settingsPath(): string {
    return join(this.root, `etc/berth/${this.role}.env`);
  }

  settings(): Promise<Env> {
    return readEnvFile(this.#settingsPath);
  }

  /** Changes what is configured; it counts when the service starts the next time. */
  async configure(settings: Environment): Promise<void> {
    await mkdir(join(this.root, 'etc/berth'), { recursive: true });
    await writeEnvFile(this.#settingsPath, { ...(await this.settings()), ...settings });
  }

  /** Runs a script of a checkout on the machine. @returns what it printed */
  script(
    checkout: string,
    name: string,
    args: readonly string[],
    settings: Env = {},
  ): Promise<string> {
    const environment = { NODE_COMPILE_CACHE: COMPILE_CACHE, ...settings };
    return this.machine.run([join(checkout, 'scripts', name), ...args], environment);
  }

  /** Starts the service as the unit says now, and waits until it is ready. */
  async start(): Promise<void> {
    const { command, environment } = await readUnit(this.role, this.root);
    const line = [...this.machine.within, ...command];
    const daemon = new Daemon(this.machine.name, line, environment, this.#logPath);
    this.#daemon = daemon;
    daemon.start();
    await waitFor(`${daemon.name} to be ready`, async () => {
      if (!daemon.isRunning) throw new Error(`${daemon.name} ended: ${await daemon.readLog()}`);
      return this.isReady();
    });
  }

  /** Looks once. */
  isReady(): Promise<boolean> {
    return this.#isReady(this);
  }

  /** @returns the exit code, or null when it did not run or a signal ended it */
  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<number | null> {
    return (await this.#daemon?.stop(signal)) ?? null;
  }

  readLog(): Promise<string> {
    return readFile(this.#logPath, 'utf8').catch(() => '');
  }
}
