import assert from 'node:assert';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs, promisify } from 'node:util';
import { nfsConfig } from '../agent/machines/nfs/nfs-config.ts';
import { pluginsDir } from '../agent/machines/nfs/nfs-programs.ts';
import { createDisk } from '../test/helpers/disks.ts';
import { machinesOf, sandboxSettings } from '../test/helpers/sandboxes.ts';
import { Stack } from '../test/helpers/stack.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { SandboxCalls } from './sandbox-calls.ts';
import { median, printComparison, printRows } from './statistics.ts';

const run = promisify(execFile);
const MEMORY_MIB = 512;
const MINUTE_MS = 60_000;
const GATEWAY = '10.255.255.1';
const NAME = 'disk';
const PLACE = '/data';
/** Those of agent/guest/mounts.c. */
const OPTIONS = `vers=4.2,proto=tcp,hard,actimeo=1,timeo=50,sec=sys,clientaddr=0.0.0.0,addr=${GATEWAY}`;

interface Flags {
  readonly rounds: number;
  readonly mib: number;
}

function readFlags(args: readonly string[]): Flags {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rounds: { type: 'string', default: '5' },
      mib: { type: 'string', default: '64' },
    },
  });
  const [rounds, mib] = [Number(values.rounds), Number(values.mib)];
  assert(rounds >= 1 && mib >= 1, '--rounds, --mib: numbers from 1 on');
  return { rounds, mib };
}

const python = (...lines: readonly string[]): string =>
  `python3 - <<'END'\n${lines.join('\n')}\nEND`;

/** Writes or reads a file in pieces of 1 MiB. Prints the seconds, up to when the server has it. */
const transfer = (kind: 'read' | 'write', directory: string, mib: number): string =>
  python(
    'import os, time',
    `name = '${directory}/bench'`,
    ...(kind === 'write'
      ? ['if os.path.exists(name): os.unlink(name)', 'piece = os.urandom(1 << 20)']
      : ["open('/proc/sys/vm/drop_caches', 'w').write('3')"]),
    'begun = time.monotonic()',
    `file = os.open(name, ${kind === 'write' ? 'os.O_WRONLY | os.O_CREAT' : 'os.O_RDONLY'})`,
    ...(kind === 'write'
      ? [`for _ in range(${mib}): os.write(file, piece)`, 'os.fsync(file)']
      : [`for _ in range(${mib}): assert len(os.read(file, 1 << 20)) == 1 << 20`]),
    'print(time.monotonic() - begun)',
  );

/** A file system of its own, served as a person would by hand: without confinement or bounds. */
class BareServer implements AsyncDisposable {
  readonly #directory: string;
  #stop: () => Promise<void> = async () => undefined;

  private constructor(directory: string) {
    this.#directory = directory;
  }

  /** @param machine a process in the slot where it is to listen */
  static async start(machine: number, mib: number): Promise<BareServer> {
    const server = new BareServer(await mkdtemp(join(tmpdir(), 'berth-bench-')));
    const directory = server.#directory;
    const [image, disk] = [join(directory, 'image'), join(directory, NAME)];
    await mkdir(disk);
    await run('truncate', ['-s', `${mib * 4}M`, image]);
    await run('mke2fs', ['-q', '-t', 'ext4', image]);
    await run('mount', ['-o', 'loop', image, disk]);
    const mount = { diskId: NAME, path: PLACE, subdirectory: '', readOnly: false, contents: disk };
    const config = nfsConfig([mount], { address: GATEWAY, pluginsDir })
      .replace('/disks/', `${directory}/`)
      .replace('= /run;', `= ${directory};`);
    await writeFile(join(directory, 'conf'), config);
    const files = ['-f', 'conf', '-L', 'log', '-p', 'pid'].map((word) =>
      word.startsWith('-') ? word : join(directory, word),
    );
    const child = spawn('nsenter', [
      `--net=/proc/${machine}/ns/net`,
      'ganesha.nfsd',
      '-F',
      ...files,
    ]);
    const exited = once(child, 'exit');
    server.#stop = async () => {
      child.kill('SIGKILL');
      await exited;
    };
    return server;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stop();
    await run('umount', [join(this.#directory, NAME)]);
    await rm(this.#directory, { recursive: true });
  }
}

const mountByHand = python(
  'import ctypes, os',
  `os.makedirs('${PLACE}', exist_ok=True)`,
  'libc = ctypes.CDLL(None, use_errno=True)',
  `source = b'${GATEWAY}:/${NAME}'`,
  `assert libc.mount(source, b'${PLACE}', b'nfs4', 6, b'${OPTIONS}') == 0, ctypes.get_errno()`,
  "print('mounted')",
);

type Places = Record<'mounted' | 'byHand' | 'root', { id: string; directory: string }>;

async function measure(calls: SandboxCalls, places: Places, { rounds, mib }: Flags): Promise<void> {
  for (const kind of ['write', 'read'] as const) {
    const rates = { mounted: [] as number[], byHand: [] as number[], root: [] as number[] };
    for (let round = 0; round <= rounds; round += 1) {
      for (const [place, { id, directory }] of Object.entries(places)) {
        const seconds = Number(await calls.output(id, transfer(kind, directory, mib)));
        if (round > 0) rates[place as keyof Places].push(mib / seconds);
      }
    }
    const title = `sequential ${kind} of ${mib} MiB in the guest, ${rounds} alternating rounds`;
    const names = { ours: 'mounted disk', baseline: 'NFS by hand' };
    const options = { unit: 'MiB/s', target: '≥ 0.9' };
    printComparison(title, { ours: rates.mounted, baseline: rates.byHand }, names, options);
    const share = (median(rates.mounted) / median(rates.root)).toFixed(2);
    const rows = [{ name: "guest's own root disk", samples: rates.root }];
    printRows(`beside it (mounted disk: ${share} of it)`, rows, options.unit);
  }
}

/** `npm run bench -- mount [--rounds N] [--mib N]`: see docs/benchmarks.md. */
export async function benchMount(args: readonly string[]): Promise<void> {
  const flags = readFlags(args);
  const stack = await Stack.start(
    { ...sandboxSettings(), DISK_SIZE_BYTES: String(1 << 30) },
    [],
    true,
  );
  try {
    const api = await stack.newClient();
    const calls = new SandboxCalls(api, AbortSignal.timeout(30 * MINUTE_MS));
    const { id: disk } = await createDisk(api);
    const mounts = [{ disk_id: disk, path: PLACE }];
    const ours = await calls.createRunning(MEMORY_MIB, { mounts });
    const other = await calls.createRunning(MEMORY_MIB);
    const [machine] = await machinesOf([other]);
    assert(machine !== undefined);
    await using _bare = await BareServer.start(machine, flags.mib);
    await waitFor('the mount by hand', async () =>
      (await calls.output(other, mountByHand).catch(() => '')).includes('mounted'),
    );
    const places = {
      mounted: { id: ours, directory: PLACE },
      byHand: { id: other, directory: PLACE },
      root: { id: ours, directory: '/root' },
    };
    await measure(calls, places, flags);
    await calls.remove(other); // Its server goes only after its clients.
  } finally {
    await stack.stop();
  }
}
