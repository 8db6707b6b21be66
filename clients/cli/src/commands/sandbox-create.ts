import type { Berth, CreateSandbox } from '@berth/sdk';
import { leaf } from '../command.ts';
import { opened } from '../context.ts';
import { Failure, UsageFailure } from '../failure.ts';
import { findDisk } from '../find.ts';
import { count, duration, each, eachCount, given, memory, readText, variable } from '../values.ts';
import { showSandbox } from './sandbox-records.ts';

/** A command with the options that a new sandbox has. */
export const creating = (name: string) =>
  leaf(name)
    .option('--image <reference>', 'begin with this image, such as python:3.13')
    .option('--snapshot <snapshot>', 'begin with the disk and memory of this snapshot')
    .option('--cpus <n>', 'virtual processors', count)
    .option('--memory <size>', 'such as 512M or 2G', memory)
    .option('-e, --env <name=value>', 'set a variable, or pass it on by its name', variable)
    .option('--mount <disk:path[:ro]>', 'show a disk as a directory; more than once', each)
    .option('--port <n>', 'make a port public; more than once', eachCount)
    .option('--public-services', 'make every port public on which something listens')
    .option('--network <file>', 'a network policy in JSON, - for stdin')
    .option('--copy-hook <command>', 'run it in copies of its memory before they continue')
    .option('--max-time <time>', 'pause it after running for so long, such as 8h', duration)
    .option('--idle-time <time>', 'pause it after doing nothing for so long', duration);

/** Values of the options of {@link creating}. */
export interface CreationOptions {
  readonly image?: string | undefined;
  readonly snapshot?: string | undefined;
  readonly cpus?: number | undefined;
  readonly memory?: number | undefined;
  readonly env?: Record<string, string> | undefined;
  readonly mount?: string[] | undefined;
  readonly port?: number[] | undefined;
  readonly publicServices?: true | undefined;
  readonly network?: string | undefined;
  readonly copyHook?: string | undefined;
  readonly maxTime?: number | undefined;
  readonly idleTime?: number | undefined;
}

/** The fields of a creation that the options ask for. */
export async function creationOf(
  berth: Berth,
  options: CreationOptions,
  name?: string,
): Promise<CreateSandbox> {
  const { mount: mounts, network } = options;
  return given({
    name,
    base_image: options.image,
    snapshot: options.snapshot,
    vcpu_count: options.cpus,
    mem_size_mib: options.memory,
    env: options.env,
    ports: options.port,
    enable_service_ingress: options.publicServices,
    copy_hook: options.copyHook,
    max_ttl_seconds: options.maxTime,
    idle_ttl_seconds: options.idleTime,
    network: network === undefined ? undefined : await readPolicy(network),
    mounts: mounts && (await Promise.all(mounts.map((mount) => parseMount(berth, mount)))),
  });
}

async function readPolicy(path: string): Promise<NonNullable<CreateSandbox['network']>> {
  try {
    return JSON.parse(await readText(path)) as NonNullable<CreateSandbox['network']>;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    throw new Failure(`${path} is not JSON`, 'see docs/network.md');
  }
}

/** `<disk>:<path>[:ro]`, with a name or an id of the disk. */
async function parseMount(berth: Berth, mount: string): Promise<object> {
  const [, disk, path, mode] = /^([^:]+)(?::(\/[^:]*))?(?::(ro|rw))?$/u.exec(mount) ?? [];
  if (disk === undefined) throw new UsageFailure(`${mount} is not a mount`, 'write disk:/path:ro');
  const { id } = await findDisk(berth, disk);
  return given({ disk_id: id, path, read_only: mode === 'ro' ? true : undefined });
}

export const createCommand = () =>
  creating('create')
    .description('Create a sandbox, and wait until it runs.')
    .argument('[name]', 'lower case letters, digits and -; a random one when left out')
    .option('--no-wait', 'do not wait until it runs')
    .action(async (name, { wait, ...options }) => {
      const { berth, output } = await opened(options);
      const creation = await creationOf(berth, options, name);
      const sandbox = await output.during('creating a sandbox', () =>
        berth.sandboxes.create(creation, { wait }),
      );
      showSandbox(output, sandbox.info);
    });
