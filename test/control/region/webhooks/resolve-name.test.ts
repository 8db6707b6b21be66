/* Names of webhooks, whose servers of DNS may answer or keep silent. */
import test from 'ava';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { resolveName } from '../../../../control/region/webhooks/resolve-name.ts';
import { waitFor } from '../../../helpers/wait.ts';

const HEADER_BYTES = 12;
const QUESTION_TAIL_BYTES = 4;
const A = 1;
/** The name of the question, the type A, the class IN, a minute, and four bytes of address. */
const RECORD = [0xc0, HEADER_BYTES, 0, A, 0, 1, 0, 0, 0, 60, 0, 4];

/** An answer to a query: these IPv4 addresses, and no address of IPv6. */
function answerTo(query: Buffer, addresses: readonly string[]): Buffer {
  const end = query.indexOf(0, HEADER_BYTES) + 1 + QUESTION_TAIL_BYTES;
  const isForA = query.readUInt16BE(end - QUESTION_TAIL_BYTES) === A;
  const records = isForA
    ? addresses.map((text) => [...RECORD, ...text.split('.').map(Number)])
    : [];
  const header = Buffer.from([0, 0, 0x81, 0x80, 0, 1, 0, records.length, 0, 0, 0, 0]);
  query.copy(header, 0, 0, 2);
  return Buffer.concat([header, query.subarray(HEADER_BYTES, end), Buffer.from(records.flat())]);
}

/** @param addresses of every name; undefined: it never answers */
async function openServer(addresses?: readonly string[]) {
  const socket = createSocket('udp4');
  let queries = 0;
  socket.on('message', (query, { port, address }) => {
    queries += 1;
    if (addresses !== undefined) socket.send(answerTo(query, addresses), port, address);
  });
  socket.bind(0, '127.0.0.1');
  await once(socket, 'listening');
  return {
    servers: [`127.0.0.1:${socket.address().port}`],
    queries: () => queries,
    [Symbol.asyncDispose]: async () => {
      socket.close();
      await once(socket, 'close');
    },
  };
}

test('a name leads to the addresses that DNS has for it', async (t) => {
  await using server = await openServer(['192.0.2.1', '192.0.2.2']);
  const { signal } = new AbortController();
  t.deepEqual(await resolveName('hooks.example', signal, server.servers), [
    { address: '192.0.2.1', family: 4 },
    { address: '192.0.2.2', family: 4 },
  ]);
});

test('the lookup of a name ends with the attempt that needs it', async (t) => {
  await using server = await openServer();
  const attempt = new AbortController();
  const lookup = resolveName('hangs.example', attempt.signal, server.servers);
  await waitFor('the query', () => Promise.resolve(server.queries() > 0));
  attempt.abort();
  await t.throwsAsync(lookup, { code: 'ECANCELLED' });
  const { signal } = attempt;
  await t.throwsAsync(resolveName('late.example', signal, server.servers), { name: 'AbortError' });
});

test('names of the file of hosts need no server', async (t) => {
  await using server = await openServer();
  const found = await resolveName('LocalHost.', new AbortController().signal, server.servers);
  t.true(found.some(({ address }) => address === '127.0.0.1' || address === '::1'));
  t.is(server.queries(), 0);
});
