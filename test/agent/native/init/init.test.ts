/*
 * The init of exec containers, driven over its socket as the agent does, as PID 1 of a PID
 * namespace of its own: it kills everything that it can see.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import type { Duplex, Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import test from 'ava';
import * as fc from '../../../helpers/fast-check.ts';
import { processesMarked } from '../../../helpers/host.ts';
import { buildsOf, type ProgramBuild } from '../../../helpers/program-builds.ts';
import { waitFor } from '../../../helpers/wait.ts';
import { MiB } from '../../../../shared/units.ts';
import { isFull } from '../../../helpers/full.ts';

const COMMAND_MAX = MiB;
const EXIT_KILLED = 137;
const EXIT_CANNOT_RUN = 126;
const READY = 0;
const STARTED = 1;
const EXITED = 2;

const builds = await buildsOf('init');

const message = (length: number, command: string | Buffer): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(length);
  return Buffer.concat([bytes, Buffer.from(command)]);
};

const commandOf = (text: string): Buffer => message(Buffer.byteLength(text), text);
const programOf = (text: string): Buffer => message(0x8000_0000 + Buffer.byteLength(text), text);

/** Init and what is known of it. */
class Init {
  readonly socket: Duplex;
  readonly exited: Promise<number | null>;
  readonly #stdout: Promise<Buffer>;
  readonly #stderr: Promise<Buffer>;
  #received = Buffer.alloc(0);

  constructor(child: ChildProcess) {
    this.socket = child.stdio[3] as Duplex;
    this.socket.on('data', (chunk: Buffer) => {
      this.#received = Buffer.concat([this.#received, chunk]);
    });
    this.socket.on('error', () => undefined); // Init may end before it has read everything.
    const streams: readonly unknown[] = child.stdio;
    this.#stdout = buffer(streams[4] as Readable);
    this.#stderr = buffer(streams[5] as Readable);
    this.exited = once(child, 'exit').then(([code]) => code as number | null);
  }

  /** Kind and value of each message so far. */
  get messages(): [kind: number, value: number][] {
    const all: [number, number][] = [];
    for (let at = 0; at + 8 <= this.#received.length; at += 8) {
      all.push([this.#received.readUInt32LE(at), this.#received.readUInt32LE(at + 4)]);
    }
    return all;
  }

  heard(kind: number): Promise<number> {
    return waitFor(`message ${kind} of init`, async () => {
      const found = this.messages.find((each) => each[0] === kind);
      return found === undefined ? undefined : found[1] + 1;
    }).then((value) => value - 1);
  }

  async output(): Promise<{ stdout: string; stderr: string }> {
    const [stdout, stderr] = await Promise.all([this.#stdout, this.#stderr]);
    return { stdout: stdout.toString(), stderr: stderr.toString() };
  }
}

async function start(build: ProgramBuild, args: readonly string[] = ['/tmp']): Promise<Init> {
  // The shell makes sure that init is PID 1 of its namespace and kills nobody outside of it.
  const guard = 'test $$ = 1 && exec "$0" "$@"';
  const child = spawn(
    'unshare',
    ['--pid', '--fork', '--mount-proc', 'sh', '-c', guard, build.path, ...args],
    {
      stdio: ['ignore', 'ignore', 'inherit', 'pipe', 'pipe', 'pipe'],
      env: {
        PATH: process.env['PATH'],
        ASAN_OPTIONS: 'detect_leaks=0:exitcode=99',
        UBSAN_OPTIONS: 'exitcode=99',
      },
    },
  );
  return new Init(child);
}

for (const build of builds) {
  test(`${build.name} runs its command and tells how it ended`, async (t) => {
    const init = await start(build);
    await init.heard(READY);
    init.socket.write(commandOf('pwd; echo $0 $$ >&2; cat; (sleep 1000 &); exit 7'));
    t.is(await init.heard(EXITED), 7);
    t.deepEqual(
      init.messages.map(([kind]) => kind),
      [READY, STARTED, EXITED],
    );
    init.socket.destroy();
    t.is(await init.exited, 7);
    const { stdout, stderr } = await init.output();
    t.is(stdout, '/tmp\n');
    t.regex(stderr, /^bash [23]\n$/u); // An emulator's second thread has a number, too.
  });

  test(`${build.name} waits, after the end, until the agent closes`, async (t) => {
    const init = await start(build);
    init.socket.write(commandOf('exit 0'));
    await init.heard(EXITED);
    const early = await Promise.race([
      init.exited,
      waitFor('time', async () => false, 200).catch(() => 'waits'),
    ]);
    t.is(early, 'waits');
    init.socket.destroy();
    t.is(await init.exited, 0);
  });

  for (const [text, status] of [
    ['', 0],
    ['kill -TERM $$', 143],
    ['kill -KILL $$', 137],
    ['exec nosuchprogram', 127],
    ['for i in {1..200}; do (sleep 0.001 &); done; exit 3', 3],
  ] as const) {
    test(`${build.name}: status ${status} of ${text === '' ? 'nothing' : text}`, async (t) => {
      const init = await start(build);
      init.socket.write(commandOf(text));
      t.is(await init.heard(EXITED), status);
      init.socket.destroy();
      t.is(await init.exited, status);
    });
  }

  for (const length of [122_880, 122_881, COMMAND_MAX]) {
    test(`${build.name} takes a command of ${length} bytes, in pieces`, async (t) => {
      const init = await start(build);
      const bytes = commandOf('echo whole #'.padEnd(length, 'x'));
      init.socket.write(bytes.subarray(0, 2));
      await init.heard(READY);
      for (let at = 2; at < bytes.length; at += 50_000) {
        init.socket.write(bytes.subarray(at, at + 50_000));
      }
      t.is(await init.heard(EXITED), 0);
      init.socket.destroy();
      t.deepEqual(await init.output(), { stdout: 'whole\n', stderr: '' });
    });
  }

  test(`${build.name} runs a program without a shell, with the arguments that it is given`, async (t) => {
    const init = await start(build);
    const long = 'x'.repeat(100_000);
    init.socket.write(programOf(`/usr/bin/printf\0<%s>\0a b\0\0$HOME\0${long}\0`));
    t.is(await init.heard(EXITED), 0);
    init.socket.destroy();
    t.is(await init.exited, 0);
    t.deepEqual(await init.output(), { stdout: `<a b><><$HOME><${long}>`, stderr: '' });
  });

  for (const [what, text, complaint] of [
    ['is not there', '/nosuchprogram\0x\0', /^berth: cannot run \/nosuchprogram: No such file/u],
    ['has no end', '/usr/bin/true\0x', /^berth: cannot run \/usr\/bin\/true: not ended/u],
    ['is not named', '', /^berth: cannot run : not ended/u],
  ] as const) {
    test(`${build.name} says so when the program ${what}`, async (t) => {
      const init = await start(build);
      init.socket.write(programOf(text));
      t.is(await init.heard(EXITED), EXIT_CANNOT_RUN);
      init.socket.destroy();
      await init.exited;
      t.regex((await init.output()).stderr, complaint);
    });
  }

  for (const [what, bytes] of [
    ['nothing', Buffer.alloc(0)],
    ['half a length', Buffer.from([1, 0])],
    ['half a command', message(100, 'echo half')],
    ['a length above the bound', message(COMMAND_MAX + 1, Buffer.alloc(COMMAND_MAX + 1, '#'))],
    ['the greatest length', message(0xffff_ffff, 'echo half')],
    ['half a program', message(0x8000_0000 + 100, '/usr/bin/true\0')],
  ] as const) {
    test(`${build.name} ends without running anything: ${what}`, async (t) => {
      const init = await start(build);
      await init.heard(READY);
      init.socket.end(bytes);
      t.is(await init.exited, EXIT_KILLED);
      t.deepEqual(await init.output(), { stdout: '', stderr: '' });
      t.deepEqual(init.messages, [[READY, 0]]);
    });
  }

  test(`${build.name} ends at any length that its bytes do not fulfil`, async (t) => {
    const short = fc.tuple(
      fc.integer({ min: 65, max: 0xffff_ffff }),
      fc.uint8Array({ maxLength: 64 }),
    );
    const property = fc.asyncProperty(short, async ([length, command]) => {
      const init = await start(build);
      init.socket.end(message(length, Buffer.from(command)));
      t.is(await init.exited, EXIT_KILLED);
      t.deepEqual(await init.output(), { stdout: '', stderr: '' });
    });
    await fc.assert(property, { numRuns: isFull ? 50 : 10 });
  });

  test(`${build.name} kills everything when the agent closes, or says more than it should`, async (t) => {
    for (const [index, finish] of [
      (init: Init) => init.socket.destroy(),
      (init: Init) => init.socket.write('more'),
    ].entries()) {
      const mark = `BERTH_MARK=${process.pid}-${build.name.length}-${index}`;
      const init = await start(build);
      init.socket.write(
        commandOf(`export ${mark}; trap "" TERM; (setsid sleep 1000 &); sleep 1000`),
      );
      await init.heard(STARTED);
      await waitFor('the command', async () => (await processesMarked(mark)).length >= 2);
      finish(init);
      t.is(await init.exited, EXIT_KILLED);
      t.deepEqual(await processesMarked(mark), []);
    }
  });

  test(`${build.name} without a working directory says so`, async (t) => {
    for (const args of [[], ['/nosuchdirectory'], ['/tmp', '/tmp']]) {
      const init = await start(build, args);
      init.socket.write(commandOf('echo ran'));
      t.is(await init.exited, EXIT_CANNOT_RUN);
      const { stdout, stderr } = await init.output();
      t.is(stdout, '');
      t.regex(stderr, /^berth: cannot enter the working directory/u);
    }
  });
}
