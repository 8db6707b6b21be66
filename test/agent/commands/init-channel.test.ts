import { duplexPair } from 'node:stream';
import { setImmediate } from 'node:timers/promises';
import test from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import { InitChannel } from '../../../agent/commands/init-channel.ts';

const message = (kind: number, value: number): Buffer => {
  const bytes = Buffer.alloc(8);
  bytes.writeUInt32LE(kind);
  bytes.writeUInt32LE(value, 4);
  return bytes;
};

/** Cuts bytes into pieces of the lengths given, and again from the first. */
function cut(bytes: Buffer, lengths: readonly number[]): Buffer[] {
  const pieces: Buffer[] = [];
  for (let at = 0, index = 0; at < bytes.length; index += 1) {
    const length = lengths[index % lengths.length] ?? 1;
    pieces.push(bytes.subarray(at, at + length));
    at += length;
  }
  return pieces;
}

test('the news of init arrive whole, however their bytes come', async (t) => {
  const lengths = fc.array(fc.integer({ min: 1, max: 20 }), { minLength: 1, maxLength: 8 });
  const property = fc.asyncProperty(lengths, fc.nat(255), async (pieces, status) => {
    const [ours, theirs] = duplexPair();
    const channel = new InitChannel(ours);
    const news: (string | number)[] = [];
    channel.on('ready', () => news.push('ready'));
    channel.on('started', () => news.push('started'));
    channel.on('exited', (code) => news.push(code));
    const bytes = Buffer.concat([message(0, 0), message(1, 7), message(2, status)]);
    for (const piece of cut(bytes, pieces)) theirs.write(piece);
    while (news.length < 3) await setImmediate();
    t.deepEqual(news, ['ready', 'started', status]);
    channel.close();
  });
  await fc.assert(property, { numRuns: 50 });
});

test('bytes that are no message of init close the channel and throw nothing', async (t) => {
  const property = fc.asyncProperty(
    fc.uint8Array({ minLength: 8, maxLength: 64 }),
    async (junk) => {
      const bytes = Buffer.from(junk);
      bytes.writeUInt32LE(3 + (bytes.readUInt32LE() % 1_000_000)); // No kind that there is.
      const [ours, theirs] = duplexPair();
      const channel = new InitChannel(ours);
      const closed = new Promise((resolve) => {
        channel.once('closed', () => resolve('closed'));
      });
      theirs.write(bytes);
      t.is(await closed, 'closed');
    },
  );
  await fc.assert(property, { numRuns: 50 });
});

test('an exit status that no process has closes the channel', async (t) => {
  const [ours, theirs] = duplexPair();
  const channel = new InitChannel(ours);
  channel.on('exited', () => t.fail());
  const closed = new Promise((resolve) => {
    channel.once('closed', () => resolve('closed'));
  });
  theirs.write(message(2, 256));
  t.is(await closed, 'closed');
});

test('a command is sent with its length in bytes', async (t) => {
  const [ours, theirs] = duplexPair();
  new InitChannel(ours).run('echo ü');
  await setImmediate();
  const sent = theirs.read() as Buffer;
  t.is(sent.readUInt32LE(), 7);
  t.is(sent.toString('utf8', 4), 'echo ü');
});

test('a program is sent with its arguments, each ended by a NUL', async (t) => {
  const [ours, theirs] = duplexPair();
  new InitChannel(ours).run(['/bin/echo', '', 'ü']);
  await setImmediate();
  const sent = theirs.read() as Buffer;
  t.is(sent.readUInt32LE(), 0x8000_0000 + 14);
  t.is(sent.toString('utf8', 4), '/bin/echo\0\0ü\0');
});
