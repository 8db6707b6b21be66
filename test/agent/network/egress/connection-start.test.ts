import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { readConnectionStart } from '../../../../agent/network/egress/connection-start.ts';
import { clientHello, inRecords, tlsRecord } from '../../../helpers/client-hellos.ts';
import { FakeTime } from '../../../helpers/fake-time.ts';

const FIRST_BYTE_MS = 10_000;
const NAMED = { kind: 'tls', name: 'good.test' };
const HTTP = { kind: 'http' };
const UNKNOWN = { kind: 'unknown' };

/** Both ends of a connection. */
async function openConnection(t: ExecutionContext): Promise<{ client: Socket; server: Socket }> {
  const listener = createServer({ allowHalfOpen: true }).listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const client = connect((listener.address() as AddressInfo).port, '127.0.0.1');
  const [server] = (await once(listener, 'connection')) as [Socket];
  t.teardown(() => {
    client.destroy();
    server.destroy();
    listener.close();
  });
  return { client, server };
}

/** How a connection is read that begins with these pieces, and then ends. */
async function readStart(t: ExecutionContext, ...pieces: Buffer[]) {
  const { client, server } = await openConnection(t);
  const reading = readConnectionStart(server, FIRST_BYTE_MS);
  for (const piece of pieces) {
    if (piece.length > 0) client.write(piece);
    await new Promise(setImmediate);
  }
  client.end();
  const start = await reading;
  const left: Buffer[] = [];
  for await (const chunk of server) left.push(chunk as Buffer);
  t.deepEqual(Buffer.concat(left), Buffer.concat(pieces), 'all of it is put back');
  return start;
}

/** The numbers from 1. */
const counted = (length: number): number[] => Array.from({ length }, (_, at) => at + 1);

/** Changes one byte. */
const changed = (bytes: Buffer, at: number, value: number): Buffer => {
  const copy = Buffer.from(bytes);
  copy[at] = value;
  return copy;
};

test('a ClientHello is read however it is cut into records and packets', async (t) => {
  const hello = await clientHello('good.test');
  const name = hello.indexOf('good.test');
  // In the type, the length, the version, before and within the name, and before the last byte.
  for (const cut of [1, 2, 4, 5, 40, name - 1, name, name + 4, hello.length - 1]) {
    const records = inRecords(hello, [cut]);
    t.deepEqual(await readStart(t, records), NAMED, `cut at ${cut}`);
    const pieces = [records.subarray(0, cut + 7), records.subarray(cut + 7)];
    t.deepEqual(await readStart(t, ...pieces), NAMED, `cut at ${cut} and sent in two`);
  }
  t.deepEqual(await readStart(t, inRecords(hello, counted(31))), NAMED, 'in 32 records');
  const early = tlsRecord(Buffer.from('early data'), 0x17);
  t.deepEqual(await readStart(t, Buffer.concat([tlsRecord(hello), early])), NAMED);
  t.deepEqual(await readStart(t, tlsRecord(await clientHello())), { kind: 'tls', name: undefined });
});

test('a ClientHello that servers could read differently is not read', async (t) => {
  const hello = await clientHello('good.test');
  const [one, two] = [hello.subarray(0, 100), hello.subarray(100)];
  const shapes = {
    'another record between': [tlsRecord(one), tlsRecord(Buffer.from([1]), 0x14), tlsRecord(two)],
    'an alert between': [tlsRecord(one), tlsRecord(Buffer.from([1, 0]), 0x15), tlsRecord(two)],
    'a record of nothing': [tlsRecord(one), tlsRecord(Buffer.alloc(0)), tlsRecord(two)],
    'a record of nothing first': [tlsRecord(Buffer.alloc(0)), tlsRecord(hello)],
    'more than 32 records': [inRecords(hello, counted(32))],
    'more than 32 records, without an end': [inRecords(hello.subarray(0, 33), counted(32))],
    'a second message in the record': [tlsRecord(Buffer.concat([hello, hello]))],
    'a byte more': [tlsRecord(Buffer.concat([hello, Buffer.from([0])]))],
    'another message': [tlsRecord(changed(hello, 0, 2))],
    'another version': [changed(tlsRecord(hello), 1, 2)],
    'a length beyond the bound': [tlsRecord(changed(hello, 1, 1))],
    'a record beyond the bound': [Buffer.from([0x16, 3, 1, 0x40, 0])],
    'a name that none is': [tlsRecord(changed(hello, hello.indexOf('good.test'), 0))],
    'two names': [tlsRecord(withTwoNames(hello))],
  };
  for (const [shape, records] of Object.entries(shapes)) {
    t.deepEqual(await readStart(t, Buffer.concat(records)), UNKNOWN, shape);
  }
  for (const part of [Buffer.from([0x16]), tlsRecord(one), Buffer.from('GET')]) {
    await t.throwsAsync(readStart(t, part), { message: /has ended before/u });
  }
  // No more than 16 KiB are read, although the message would have an end.
  const { client, server } = await openConnection(t);
  const long = Buffer.concat([Buffer.from([1, 0, 0x3f, 0xc0]), Buffer.alloc(0x3fc0)]);
  const cuts = counted(31).map((at) => at * 500);
  client.write(inRecords(long, cuts));
  t.deepEqual(await readConnectionStart(server, FIRST_BYTE_MS), UNKNOWN);
});

test.serial('a ClientHello that comes byte by byte is not copied with each byte', async (t) => {
  const records = inRecords(await clientHello('good.test'), [1, 100, 200]);
  const { client, server } = await openConnection(t);
  client.setNoDelay();
  const concat = Buffer.concat.bind(Buffer);
  let copied = 0;
  Buffer.concat = (parts, length) => {
    const joined = concat(parts, length);
    copied += joined.length;
    return joined;
  };
  try {
    const reading = readConnectionStart(server, FIRST_BYTE_MS);
    for (const [at, byte] of records.entries()) {
      client.write(Buffer.from([byte]));
      while (server.bytesRead <= at) await new Promise(setImmediate);
    }
    t.deepEqual(await reading, NAMED);
  } finally {
    Buffer.concat = concat;
  }
  t.true(copied < 10 * records.length, `${copied} bytes were copied`);
});

/** Repeats the extension with the name, and says so in all lengths around it. */
function withTwoNames(hello: Buffer): Buffer {
  const from = hello.indexOf('good.test') - 9;
  const extension = hello.subarray(from, from + 9 + 'good.test'.length);
  const twice = Buffer.concat([hello.subarray(0, from), extension, hello.subarray(from)]);
  twice.writeUIntBE(twice.length - 4, 1, 3);
  const ciphers = 4 + 2 + 32 + 1 + (hello[38] ?? 0);
  const extensions = ciphers + 2 + hello.readUInt16BE(ciphers) + 2;
  twice.writeUInt16BE(hello.readUInt16BE(extensions) + extension.length, extensions);
  return twice;
}

test('a request line is told by any method, also behind empty lines', async (t) => {
  const line = ' / HTTP/1.1';
  for (const start of [
    'GET',
    'get',
    'X-M.e_t~h!0d',
    '\r\nGET',
    '\n\r\n\nGET',
    '\r\n'.repeat(8) + 'GET',
  ]) {
    const pieces = Array.from(start + line, (each) => Buffer.from(each));
    t.deepEqual(await readStart(t, Buffer.from(start + line)), HTTP, JSON.stringify(start));
    t.deepEqual(await readStart(t, ...pieces), HTTP, JSON.stringify(start));
  }
});

test('a connection that begins with neither TLS nor an HTTP/1 request line is unknown', async (t) => {
  for (const bytes of [
    ...['\0\u0001', ' / HTTP/1.1\r\n', 'GET\t/ HTTP/1.1\r\n', 'G@T / HTTP/1.1', 'GET\r\n'],
    ...['\r\n'.repeat(9), `${'A'.repeat(21)} /`, 'PRI * HTTP/2.0', '\r\nPRI * HTTP/2.0'],
    ...['SSH-2.0-OpenSSH_9.6 x\r\n', 'SSH-2.0-Go\r\n', '\r\n\u0016\u0003\u0001'],
  ]) {
    t.deepEqual(await readStart(t, Buffer.from(bytes)), UNKNOWN, JSON.stringify(bytes));
  }
  t.deepEqual(await readStart(t), UNKNOWN);
});

test.serial('a client may be silent for 10 s, and then has 10 s for its ClientHello', async (t) => {
  using time = new FakeTime();
  const hello = tlsRecord(await clientHello('good.test'));
  const late = await openConnection(t);
  const readLate = readConnectionStart(late.server, FIRST_BYTE_MS);
  await time.pass(9_900);
  late.client.write(hello.subarray(0, 1));
  await time.until('the first byte', () => late.server.bytesRead === 1);
  await time.pass(9_900);
  late.client.write(hello.subarray(1));
  t.deepEqual(await readLate, NAMED);

  const silent = await openConnection(t);
  const readSilent = readConnectionStart(silent.server, FIRST_BYTE_MS);
  await time.pass(10_000);
  t.deepEqual(await readSilent, UNKNOWN);

  const stuck = await openConnection(t);
  const readStuck = readConnectionStart(stuck.server, FIRST_BYTE_MS);
  const refused = t.throwsAsync(readStuck, { message: /did not come in time/u });
  stuck.client.write(hello.subarray(0, 100));
  await time.until('the first bytes', () => stuck.server.bytesRead === 100);
  await time.pass(10_000);
  await refused;
});
