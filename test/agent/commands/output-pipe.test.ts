/* Output of a container is read to its end; what others write into the same pipe is not. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeSync } from 'node:fs';
import test from 'ava';
import { OutputPipe } from '../../../agent/commands/output-pipe.ts';
import { OutputTurns } from '../../../agent/commands/output-turns.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { MiB } from '../../../shared/units.ts';

/** A pipe whose output is kept in the directory when it is long. */
async function openPipe() {
  const directory = await temporaryDirectory();
  const place = { directory: directory.path, turns: new OutputTurns() };
  const pipe = new OutputPipe(4 * MiB, place);
  return {
    pipe,
    async [Symbol.asyncDispose]() {
      pipe.close();
      await pipe.tail.close();
      await directory[Symbol.asyncDispose]();
    },
  };
}

test('everything that was written before is there after draining, also when it is long', async (t) => {
  await using opened = await openPipe();
  const { pipe } = opened;
  const bytes = 3_000_000;
  const stdio = ['ignore', pipe.writeFd, 'inherit'] as const;
  const writer = spawn('head', ['-c', String(bytes), '/dev/zero'], { stdio: [...stdio] });
  await once(writer, 'exit');
  await pipe.drain(() => false);
  t.is(pipe.tail.keptBytes, bytes);
  t.true((await pipe.tail.read()).equals(Buffer.alloc(bytes)));
});

test('what is written into the pipe after its command has ended is no output of that', async (t) => {
  await using opened = await openPipe();
  const { pipe } = opened;
  writeSync(pipe.writeFd, 'mine');
  const drained = pipe.drain(() => false);
  writeSync(pipe.writeFd, 'theirs');
  await drained;
  t.is(String(await pipe.tail.read()), 'mine');
  t.is(pipe.tail.droppedBytes, 0);
});

test('a command that is given up waits no longer for whoever takes its output', async (t) => {
  await using opened = await openPipe();
  const { pipe } = opened;
  const asked = Promise.withResolvers<void>();
  const stuck = Promise.withResolvers<void>();
  pipe.redirect({
    write: () => {
      asked.resolve();
      return stuck.promise;
    },
  });
  writeSync(pipe.writeFd, 'output');
  let isGivenUp = false;
  const drained = pipe.drain(() => isGivenUp);
  await asked.promise;
  isGivenUp = true;
  await drained;
  stuck.resolve();
  t.pass();
});
