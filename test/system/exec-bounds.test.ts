/*
 * Limits of a command: processes, memory, scratch space, its disk, output. Each bound is met by the
 * command alone: it is told what happened, and the host goes on as before.
 */
import anyTest, { type TestFn } from 'ava';
import type { ExecResult } from '../../shared/schemas/exec.ts';
import type { ApiClient } from '../helpers/api.ts';
import { MiB } from '../../shared/units.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { peakMemoryBytes, processesMarked } from '../helpers/host.ts';
import { Stack } from '../helpers/stack.ts';
import { isFull } from '../helpers/full.ts';

const PROCESSES = 64;
const MEMORY_BYTES = 96 * MiB;
const SCRATCH_BYTES = 64 * MiB; // The memory limit holds one full scratch space, but not two.
const DISK_BYTES = 32 * MiB;
const OUTPUT_BYTES = 16 * MiB;
const FLOOD_BYTES = 256 * MiB;

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient; agentPid: number }>;

test.before(async (t) => {
  t.context.stack = await Stack.start({
    EXEC_PROCESSES: String(PROCESSES),
    EXEC_MEMORY_BYTES: String(MEMORY_BYTES),
    EXEC_SCRATCH_BYTES: String(SCRATCH_BYTES),
    DISK_SIZE_BYTES: String(DISK_BYTES),
    EXEC_TIMEOUT_MS: '60000',
  });
  t.context.api = await t.context.stack.newClient();
  t.context.agentPid = t.context.stack.agent.pid;
});

// Serial, because the whole host is inspected after each test.
test.afterEach(async (t) => {
  const { api, stack, agentPid } = t.context;
  const { id } = await createDisk(api);
  t.is((await exec(api, id, 'echo healthy')).stdout, 'healthy\n');
  t.is(stack.agent.pid, agentPid);
});

test.after.always(async (t) => {
  const { stack } = t.context;
  t.notRegex(await stack.agent.readLog(), /"level":"error"/u);
  await stack.stop();
});

const python = (text: string): string => `exec python3 - <<'END'\n${text}\nEND`;

const filled = (bytes: number): string => `head -c ${bytes} /dev/zero | tr '\\0' x`;

async function runOnNewDisk(api: ApiClient, command: string): Promise<ExecResult> {
  const { id } = await createDisk(api);
  return exec(api, id, command);
}

const note = `\nberth: out of memory: the command may use ${MEMORY_BYTES / MiB} MiB; processes were killed\n`;

test.serial(
  'a fork bomb stays within the number of processes and ends with the command',
  async (t) => {
    const { api } = t.context;
    const mark = 'BERTH_MARK=fork-bomb';
    // Forks that are refused cost kernel memory, which counts. Without a pause between them, they
    // can use up the memory limit, and the kernel may then kill the command itself (exit code 137).
    const bomb = python(`
import os, sys, time
end = time.monotonic() + 20
while time.monotonic() < end:
    try:
        if os.fork() == 0:
            while True:
                try: os.fork()
                except BlockingIOError: time.sleep(0.1)
    except BlockingIOError:
        print('refused'); break
alive = sum(name.isdigit() for name in os.listdir('/proc'))
print(alive)
sys.exit(3)`);
    const result = await runOnNewDisk(t.context.api, `export ${mark}\n${bomb}`);
    t.deepEqual(await processesMarked(mark), []);
    t.is(result.exitCode, 3, result.stderr);
    const [refused, alive] = result.stdout.trim().split('\n');
    t.is(refused, 'refused');
    t.true(Number(alive) <= PROCESSES, `${alive} processes`);
    t.is((await runOnNewDisk(api, 'exit 2')).exitCode, 2);
  },
);

test.serial('a command that uses too much memory is killed, and its stderr says so', async (t) => {
  const result = await runOnNewDisk(t.context.api, python('bytearray(b"x") * (1 << 30)'));
  t.is(result.exitCode, 137);
  t.true(result.stderr.endsWith(note), result.stderr);
});

test.serial(
  'a child that uses too much memory is reported beside the command’s own result',
  async (t) => {
    const hog = 'python3 -c "bytearray(b\'x\') * (1 << 30)"';
    const result = await runOnNewDisk(t.context.api, `${hog}; echo child $?; exit 4`);
    t.is(result.stderr.slice(-note.length), note);
    // The kernel chooses its victim, which may be the command itself.
    t.true(result.exitCode === 4 ? result.stdout === 'child 137\n' : result.exitCode === 137);
  },
);

test.serial('memory hidden in files in memory counts', async (t) => {
  const fill = `head -c ${SCRATCH_BYTES - MiB} /dev/zero`;
  const result = await runOnNewDisk(
    t.context.api,
    `${fill} > /tmp/a; ${fill} > /dev/shm/b; exit 0`,
  );
  t.is(result.stderr.slice(-note.length), note);
});

test.serial('System V shared memory counts, and is freed with the command', async (t) => {
  const hog = python(`
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for key in range(8):
    segment = libc.shmget(key + 1, 32 << 20, 0o1600)
    libc.memset(ctypes.c_void_p(libc.shmat(segment, None, 0)), 1, 32 << 20)`);
  const result = await runOnNewDisk(t.context.api, hog);
  t.is(result.exitCode, 137);
  t.is((await runOnNewDisk(t.context.api, 'wc -l < /proc/sysvipc/shm')).stdout, '1\n');
});

for (const place of ['/tmp', '/root', '/dev/shm', '/dev']) {
  test.serial(`full scratch space: ${place}`, async (t) => {
    const fill = `head -c ${2 * SCRATCH_BYTES} /dev/zero > ${place}/file`;
    const result = await runOnNewDisk(
      t.context.api,
      `${fill}; echo $?; df --output=avail ${place} | tail -1`,
    );
    t.is(result.stdout, '1\n    0\n');
    t.regex(result.stderr, /No space left on device/u);
  });
}

test.serial('a full disk: the command is told, the next one can free it', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  const full = await exec(api, id, 'echo first > first; sync; head -c 1G /dev/zero > big');
  t.is(full.exitCode, 1);
  t.regex(full.stderr, /No space left on device/u);
  const more = await exec(api, id, 'cat first; head -c 1M /dev/zero > more');
  t.is(more.stdout, 'first\n');
  t.is(more.exitCode, 1);
  const freed = await exec(api, id, 'rm big; head -c 8M /dev/zero > more && stat -c %s more');
  t.is(freed.stdout, `${8 * MiB}\n`, freed.stderr);
});

test.serial('no inodes left: the command is told, the next one can free them', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  const fill = python(`
import errno, os
os.mkdir('many')
try:
    for i in range(1 << 20): os.close(os.open(f'many/{i}', os.O_CREAT | os.O_WRONLY))
except OSError as error:
    print(errno.errorcode[error.errno], i > 1000)`);
  t.is((await exec(api, id, fill)).stdout, 'ENOSPC True\n');
  t.is((await exec(api, id, 'touch one')).exitCode, 1);
  t.is((await exec(api, id, 'rm -r many && touch one && ls')).stdout, 'one\n');
});

test.serial(
  'of 256 MiB of output the last 16 MiB are kept, and control and agent do not grow',
  async (t) => {
    const { api, stack } = t.context;
    const result = await runOnNewDisk(
      api,
      `yes 0123456789abcde | head -c ${FLOOD_BYTES}; echo end; exit 5`,
    );
    t.is(result.exitCode, 5);
    t.is(result.stdout.length, OUTPUT_BYTES);
    t.true(result.stdout.endsWith('0123456789abcde\nend\n'));
    const dropped = FLOOD_BYTES + 4 - OUTPUT_BYTES;
    t.is(
      result.stderr,
      `\nberth: stdout was cut: its first ${dropped} bytes were dropped, the last 16 MiB are kept\n`,
    );
    for (const { name, pid } of [stack.agent, stack.control]) {
      const peak = await peakMemoryBytes(pid);
      t.true(peak < 512 * MiB, `${name} has had ${Math.round(peak / MiB)} MiB`);
    }
  },
);

test.serial('output of exactly the limit is complete, one byte more is cut', async (t) => {
  const { api } = t.context;
  const whole = await runOnNewDisk(api, `${filled(OUTPUT_BYTES)}; ${filled(OUTPUT_BYTES)} >&2`);
  t.is(whole.stdout, 'x'.repeat(OUTPUT_BYTES));
  t.is(whole.stderr, whole.stdout);
  const cut = await runOnNewDisk(api, `(echo; ${filled(OUTPUT_BYTES)}) >&2`);
  const cutNote =
    '\nberth: stderr was cut: its first 1 bytes were dropped, the last 16 MiB are kept\n';
  t.is(cut.stderr, `${'x'.repeat(OUTPUT_BYTES)}${cutNote}`);
});

test.serial('thousands of files with odd names', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  const make = python(`
import os
for i in range(1, 256):
    if i != 47: open(b'%c' % i + b'-odd', 'w').close() if i != 46 else None
for i in range(3000): open(b'\\n\\xff\\xfe%d\\x1b[2J"\\'$(x)*' % i, 'w').close()
open('x' * 255, 'w').close()
open('-rf', 'w').close()
print(len(os.listdir(b'.')))`);
  t.is((await exec(api, id, make)).stdout, '3255\n');
  const listed = await exec(
    api,
    id,
    'find . -type f -print0 | tr -cd "\\0" | wc -c; ls | head -c 100000',
  );
  t.regex(listed.stdout, /^3255\n/u);
  t.true(listed.stdout.includes('\u{fffd}'));
  t.is((await exec(api, id, 'find . -mindepth 1 -delete; ls -A')).stdout, '');
});

test.serial('chains and loops of links, FIFOs, sockets and deep trees', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  const make = python(`
import os, socket
os.symlink('loop-b', 'loop-a'); os.symlink('loop-a', 'loop-b'); os.symlink('.', 'self')
open('target', 'w').write('reached\\n')
os.symlink('target', 'chain-0')
for i in range(60): os.symlink(f'chain-{i}', f'chain-{i + 1}')
os.mkfifo('fifo'); socket.socket(socket.AF_UNIX).bind('socket')
for _ in range(600):
    os.mkdir('d' * 20); os.chdir('d' * 20)
open('deepest', 'w').close()`);
  t.is((await exec(api, id, make)).exitCode, 0);
  // The kernel follows 40 links, in up to three attempts at one path on a busy machine, which it
  // adds up.
  const look =
    'cat chain-11; cat chain-40; cat loop-a; cat self/self/self/target; find . -name deepest | wc -l';
  const seen = await exec(api, id, look);
  t.is(seen.stdout, 'reached\nreached\n1\n');
  t.is(seen.stderr.match(/Too many levels of symbolic links/gu)?.length, 2);
  t.is((await exec(api, id, 'rm -rf ./* && ls -A')).stdout, '');
});

test.serial('a sparse file larger than the disk, and one larger than files can be', async (t) => {
  const { stdout } = await runOnNewDisk(
    t.context.api,
    'truncate -s 1T sparse && stat -c %s sparse; truncate -s 100T huge || echo refused; rm sparse',
  );
  t.is(stdout, '1099511627776\nrefused\n');
});

(isFull ? test.serial : test.serial.skip)('many hungry commands at once', async (t) => {
  const { api } = t.context;
  const commands = [
    'yes | head -c 200M',
    python('bytearray(b"x") * (1 << 30)'),
    'head -c 1G /dev/zero > big',
    'head -c 1G /dev/zero > /tmp/big',
    'for i in {1..200}; do sleep 100 & done 2>/dev/null',
    'timeout 3 sh -c "while :; do :; done"',
  ];
  const disks = await Promise.all(Array.from({ length: 4 }, () => createDisk(api)));
  const results = await Promise.all(
    disks.flatMap(({ id }) => commands.map((command) => exec(api, id, command))),
  );
  t.is(results.length, disks.length * commands.length);
});
