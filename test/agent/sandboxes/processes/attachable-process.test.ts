import { randomUUID } from 'node:crypto';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import test from 'ava';
import { AttachableProcess } from '../../../../agent/sandboxes/processes/attachable-process.ts';
import { SANDBOX_LIMITS } from '../../../../agent/sandboxes/limits.ts';
import { MiB } from '../../../../shared/units.ts';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

/** Bytes that are in use once all that is not is collected. */
function usedBytes(): number {
  collectGarbage();
  return process.memoryUsage().heapUsed;
}

/** A command as it comes in JSON, with two bytes for each character. */
const longCommand = (): string => Buffer.alloc(MiB, ': Ž;').toString();

test('a process keeps as much of its command as is listed, and one character', (t) => {
  const waiting = { bytes: 0, bytesMax: 0 };
  const before = usedBytes();
  const processes = Array.from(
    { length: 20 },
    () => new AttachableProcess(randomUUID(), waiting, { command: longCommand() }),
  );
  const grownBytes = usedBytes() - before;
  t.true(grownBytes < 2 * MiB, `${grownBytes} bytes for ${processes.length} processes`);
  const kept = SANDBOX_LIMITS.sandboxCommandListedMax + 1;
  for (const { command } of processes) t.is(command, longCommand().slice(0, kept));
  const short = new AttachableProcess(randomUUID(), waiting, { command: 'echo Ž' });
  t.is(short.command, 'echo Ž');
});
