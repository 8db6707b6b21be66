import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { type AddressInfo, connect } from 'node:net';
import test from 'ava';
import { createHttpMetrics, startHttpServer } from '../../../shared/http/http-server.ts';
import { createLogger } from '../../../shared/log.ts';
import { Registry } from '../../../shared/metrics.ts';

const hex = (port: number): string => port.toString(16).toUpperCase().padStart(4, '0');

/** The timer that the kernel runs for a connection, by the server's and the client's port. */
async function kernelTimer(serverPort: number, clientPort: number): Promise<string | undefined> {
  const rows = (await readFile('/proc/net/tcp', 'utf8')).split('\n');
  const fields = rows.map((row) => row.trim().split(/\s+/u));
  const found = fields.find(
    ([, local, remote]) =>
      local?.endsWith(`:${hex(serverPort)}`) === true &&
      remote?.endsWith(`:${hex(clientPort)}`) === true,
  );
  return found?.[5]?.split(':')[0];
}

const KEEP_ALIVE = '02';

test('the kernel probes connections that are silent', async (t) => {
  const server = await startHttpServer(
    {
      ...{ name: 'public', host: '127.0.0.1', port: 0, headerBytesMax: 16_384 },
      connections: {
        ...{ max: 10, perAddressMax: 10, proxies: [] },
        transfers: { bytesPerSecondMin: 1, stalledMs: 60_000, crowdedStalledMs: 60_000 },
      },
      render: (_code, problem) => ({ contentType: 'text/plain', body: problem }),
      ...{ log: createLogger('test', {}), metrics: createHttpMetrics(new Registry()) },
    },
    (_request, response) => response.end(),
  );
  const { port } = server.address() as AddressInfo;
  const client = connect(port, '127.0.0.1');
  t.teardown(() => {
    client.destroy();
    server.close();
  });
  client.write('GET / HTTP/1.1\r\nHost: test\r\n\r\n');
  await once(client, 'data');
  t.is(await kernelTimer(port, client.localPort ?? 0), KEEP_ALIVE);
});
