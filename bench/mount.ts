import assert from 'node:assert';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { nfsConfig } from '../agent/machines/nfs/nfs-config.ts';
import { pluginsDir } from '../agent/machines/nfs/nfs-programs.ts';
import { GiB } from '../shared/units.ts';
import { createDisk } from '../test/helpers/disks.ts';
import { machinesOf, sandboxSettings } from '../test/helpers/sandboxes.ts';
import { Stack } from '../test/helpers/stack.ts';
import { temporaryDirectory } from '../test/helpers/temporary.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { readFlags } from './flags.ts';
import { SandboxCalls } from './sandbox-calls.ts';
import { inTurns, median, printComparison, printRows } from './statistics.ts';

const run = promisify(execFile);
const MEMORY_MIB = 512;
const GATEWAY = '10.255.255.1';
const NAME = 'disk';
const PLACE = '/data';
/** Those of agent/guest/mounts.c. */
const OPTIONS = `vers=4.2,proto=tcp,hard,actimeo=1,timeo=50,sec=sys,clientaddr=0.0.0.0,addr=${GATEWAY}`;

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

/**
 * Serves a file system of its own as a person would by hand: without confinement or bounds.
 * @param machine a process in the slot where the server is to listen
 */
async function serveByHand(machine: number, mib: number): Promise<AsyncDisposable> {
  await using undo = new AsyncDisposableStack();
  const { path: directory } = undo.use(await temporaryDirectory());
  const [image, disk] = [join(directory, 'image'), join(directory, NAME)];
  await mkdir(disk);
  await run('truncate', ['-s', `${mib * 4}M`, image]);
  await run('mke2fs', ['-q', '-t', 'ext4', image]);
  await run('mount', ['-o', 'loop', image, disk]);
  undo.defer(async () => void (await run('umount', [disk])));
  const mount = { diskId: NAME, path: PLACE, subdirectory: '', readOnly: false, contents: disk };
  const config = nfsConfig([mount], { address: GATEWAY, pluginsDir })
    .replace('/disks/', `${directory}/`)
    .replace('= /run;', `= ${directory};`);
  const [conf, log, pid] = ['conf', 'log', 'pid'].map((name) => join(directory, name)) as [
    string,
    string,
    string,
  ];
  await writeFile(conf, config);
  const within = `--net=/proc/${machine}/ns/net`;
  const server = ['ganesha.nfsd', '-F', '-f', conf, '-L', log, '-p', pid];
  const child = spawn('nsenter', [within, ...server]);
  const exited = once(child, 'exit');
  undo.defer(async () => {
    child.kill('SIGKILL');
    await exited;
  });
  return undo.move();
}

const mountByHand = python(
  'import ctypes, os',
  `os.makedirs('${PLACE}', exist_ok=True)`,
  'libc = ctypes.CDLL(None, use_errno=True)',
  `source = b'${GATEWAY}:/${NAME}'`,
  `assert libc.mount(source, b'${PLACE}', b'nfs4', 6, b'${OPTIONS}') == 0, ctypes.get_errno()`,
  "print('mounted')",
);

/** `npm run bench -- mount`: see docs/benchmarks.md. */
export async function benchMount(args: readonly string[]): Promise<void> {
  const { rounds, mib } = readFlags(args, { rounds: 5, mib: 64 });
  await using stack = await Stack.start({ ...sandboxSettings(), DISK_SIZE_BYTES: String(GiB) });
  const api = await stack.newClient();
  const calls = new SandboxCalls(api);
  const { id: disk } = await createDisk(api);
  const mounted = await calls.createRunning(MEMORY_MIB, {
    mounts: [{ disk_id: disk, path: PLACE }],
  });
  const other = await calls.createRunning(MEMORY_MIB);
  const [machine] = await machinesOf([other]);
  assert(machine !== undefined);
  await using _bare = await serveByHand(machine, mib);
  await waitFor('the mount by hand', async () =>
    (await calls.output(other, mountByHand).catch(() => '')).includes('mounted'),
  );
  for (const kind of ['write', 'read'] as const) {
    const rate = (id: string, directory: string) => async (): Promise<number> =>
      mib / Number(await calls.output(id, transfer(kind, directory, mib)));
    const sides = {
      ours: rate(mounted, PLACE),
      baseline: rate(other, PLACE),
      root: rate(mounted, '/root'),
    };
    const rates = await inTurns(rounds, sides, 1);
    const title = `sequential ${kind} of ${mib} MiB in the guest, ${rounds} alternating rounds`;
    const names = { ours: 'mounted disk', baseline: 'NFS by hand' };
    const options = { unit: 'MiB/s', target: '≥ 0.9' };
    printComparison(title, rates, names, options);
    const share = (median(rates.ours) / median(rates.root)).toFixed(2);
    const rows = [{ name: "guest's own root disk", samples: rates.root }];
    printRows(`beside it (mounted disk: ${share} of it)`, rows, options.unit);
  }
  await calls.remove(other); // Its server goes only after its clients.
}
