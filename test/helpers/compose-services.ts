/*
 * Runs the services of a compose file by runc, as an engine would: what the file and the image say
 * is read by Debian's docker-compose and by umoci, and nothing else is added. There is no engine
 * here. The host's network is a network namespace, and named volumes are directories, made as the
 * image has them; both are the test's.
 */
import { execFile } from 'node:child_process';
import { cp, mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { Daemon } from './daemon.ts';

interface Mount {
  readonly destination: string;
  readonly type: string;
  readonly source: string;
  readonly options: readonly string[];
}

interface Bundle {
  process: {
    terminal: boolean;
    args: string[];
    env: string[];
    capabilities: Record<string, string[]>;
    noNewPrivileges: boolean;
    rlimits: { type: string; hard: number; soft: number }[];
  };
  root: { path: string; readonly: boolean };
  mounts: Mount[];
  linux: { namespaces: { type: string; path?: string }[] };
}

/** Those of a service's settings that this helper obeys; it refuses a file that has others. */
interface ServiceSettings {
  readonly image: string;
  readonly network_mode: 'host';
  readonly read_only: boolean;
  readonly cap_drop: ['ALL'];
  readonly security_opt: ['no-new-privileges:true'];
  readonly ulimits: { readonly nofile: number };
  readonly entrypoint?: string[];
  readonly environment?: Record<string, string>;
  readonly volumes: string[];
  readonly healthcheck: { readonly test: string[] };
  readonly stop_signal: 'SIGTERM';
}

export type ComposeFile = Readonly<Record<string, ServiceSettings>>;

const OBEYED = new Set([
  ...['image', 'network_mode', 'read_only', 'cap_drop', 'security_opt', 'ulimits', 'entrypoint'],
  ...['environment', 'volumes', 'healthcheck', 'stop_signal'],
  ...['restart', 'logging', 'depends_on', 'stop_grace_period'], // The test's own to do.
]);

export const run = async (program: string, ...args: string[]): Promise<string> =>
  (await promisify(execFile)(program, args, { maxBuffer: 2 ** 26 })).stdout;

/** The services of `compose.yaml`, validated and completed. @throws Error when it is not valid */
export async function readComposeFile(directory: string): Promise<ComposeFile> {
  const toJson = 'import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)';
  const script = `docker-compose -f "$1" --project-directory "$2" config | python3 -c '${toJson}'`;
  const file = join(directory, 'compose.yaml');
  const printed = await run('bash', '-euo', 'pipefail', '-c', script, 'compose', file, directory);
  const { services } = JSON.parse(printed) as { services: ComposeFile };
  for (const [name, settings] of Object.entries(services)) {
    const others = Object.keys(settings).filter((key) => !OBEYED.has(key));
    if (others.length > 0)
      throw new Error(`${name} has ${others.join()}, which is not obeyed here`);
  }
  return services;
}

/** The container of a service. */
export class ComposeService {
  readonly id: string;
  readonly settings: ServiceSettings;
  readonly bundle: string;
  readonly daemon: Daemon;

  constructor(id: string, settings: ServiceSettings, bundle: string) {
    this.id = id;
    this.settings = settings;
    this.bundle = bundle;
    const command = ['runc', 'run', '--bundle', bundle, id];
    this.daemon = new Daemon(id, command, {}, join(bundle, 'log'));
  }

  /** Unpacks the image and writes its configuration for runc. */
  async prepare(image: string, volumes: string, network: string): Promise<void> {
    await run('umoci', 'unpack', '--image', image, this.bundle);
    const path = join(this.bundle, 'config.json');
    const config = JSON.parse(await readFile(path, 'utf8')) as Bundle;
    const { entrypoint, environment = {}, ulimits, read_only } = this.settings;
    const { nofile } = ulimits;
    Object.assign(config.process, {
      terminal: false,
      noNewPrivileges: true,
      capabilities: {},
      rlimits: [{ type: 'RLIMIT_NOFILE', hard: nofile, soft: nofile }],
      args: entrypoint ?? config.process.args,
    });
    config.process.env.push(...Object.entries(environment).map((pair) => pair.join('=')));
    config.root.readonly = read_only;
    const { linux } = config;
    linux.namespaces = linux.namespaces.filter(({ type }) => type !== 'network');
    linux.namespaces.push({ type: 'network', path: `/run/netns/${network}` });
    config.mounts = [...config.mounts, ...(await this.#mounts(volumes))];
    await writeFile(path, JSON.stringify(config));
  }

  async #mounts(volumes: string): Promise<Mount[]> {
    const mounts = this.settings.volumes.map(async (volume): Promise<Mount> => {
      const [from = '', destination = '', mode = 'rw'] = volume.split(':');
      const isNamed = !from.startsWith('/');
      const source = isNamed ? join(volumes, from) : from;
      if (isNamed) await this.#makeVolume(source, destination);
      // The source may be a file.
      else await mkdir(source, { recursive: true }).catch(() => undefined);
      return { destination, type: 'bind', source, options: ['rbind', mode] };
    });
    return Promise.all(mounts);
  }

  /** A new volume is a copy of what the image has there, its owner included. */
  async #makeVolume(source: string, destination: string): Promise<void> {
    const made = await mkdir(source, { recursive: true });
    if (made === undefined) return;
    await cp(join(this.bundle, 'rootfs', destination), source, { recursive: true });
    await run('chown', '--reference', join(this.bundle, 'rootfs', destination), source);
  }

  exec(...command: string[]): Promise<string> {
    return run('runc', 'exec', this.id, ...command);
  }

  /** Whether the service's own health check finds it healthy. */
  async isHealthy(): Promise<boolean> {
    const [kind, ...command] = this.settings.healthcheck.test;
    if (kind !== 'CMD') throw new Error(`a health check of the kind ${kind}`);
    return this.exec(...command).then(
      () => true,
      () => false,
    );
  }

  /** @returns the exit code after the service's stop signal */
  async stop(): Promise<number | null> {
    return this.daemon.stop(this.settings.stop_signal);
  }

  async remove(): Promise<void> {
    await this.daemon.stop('SIGKILL');
    await run('runc', 'delete', '--force', this.id);
  }
}
