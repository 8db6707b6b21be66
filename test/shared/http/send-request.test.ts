/*
 * Control and agent outlive every answer to their requests. An error without a listener would end
 * the process, and so this test. The guests of the ingress and the servers behind the egress proxy
 * have tests of their own.
 */
import { once } from 'node:events';
import { createServer } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { join } from 'node:path';
import { buffer, text } from 'node:stream/consumers';
import { setImmediate as nextTurn } from 'node:timers/promises';
import test from 'ava';
import { EgressClient } from '../../../agent/network/egress/egress-client.ts';
import { Doors } from '../../../agent/edge/ingress/doors.ts';
import type { ToMain } from '../../../agent/edge/ingress/messages.ts';
import { RemoteObjects } from '../../../agent/edge/s3/remote-objects.ts';
import { DataProxy } from '../../../control/region/data-proxy.ts';
import { FilesProxy } from '../../../control/region/files-proxy.ts';
import { sendWebhook } from '../../../control/region/webhooks/send-webhook.ts';
import { STRICT_HTTP } from '../../../shared/http/strict-http.ts';
import { newAccountId, newDiskId, newHostId, newSandboxId } from '../../../shared/ids.ts';
import { RequestForwarder } from '../../../shared/links/forward-request.ts';
import { type PartAuth, PartRequests } from '../../../shared/links/part-requests.ts';
import { ReachableNetworks } from '../../../shared/reachable-networks.ts';
import { GARBAGE_ANSWERS, serveGarbage } from '../../helpers/garbage-answers.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

const auth: PartAuth = { clusterSecrets: ['secret-of-a-cluster'] };
const hostId = newHostId();
const ids = { accountId: newAccountId(), sandboxId: newSandboxId(), diskId: newDiskId() };
const lasting = new AbortController().signal;
const networks = new ReachableNetworks(['127.0.0.0/8']);

const hostAt = (internalUrl: string) => ({
  ...{ hostId, publicUrl: internalUrl, internalUrl, jobsPending: 0 },
  load: {} as never,
});

/** Has an object request forwarded, as control and agents do. @returns the bytes of the answer */
async function forwarded(baseUrl: string, request: string): Promise<Buffer> {
  const forwarder = new RequestForwarder(auth);
  const origin = { address: '127.0.0.1', hopsLeft: '1' } as const;
  const server = createServer(STRICT_HTTP, (incoming, response) => {
    forwarder.forward(incoming, response, { hostId, baseUrl, origin }).catch(() => {
      response.destroy();
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const socket = connect((server.address() as AddressInfo).port, '127.0.0.1');
  socket.write(
    `${request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody`,
  );
  try {
    return await buffer(socket);
  } finally {
    server.close();
    forwarder.close();
  }
}

const call = { ...ids, hostId, headers: {}, requestId: 'r', signal: lasting };
const read = { type: 'read', path: 'YQ', follow: true } as const;

/** All that make requests, by what they do. Each settles when the answer has ended. */
const callers: Record<string, (baseUrl: string) => Promise<unknown>> = {
  'an object is read': (baseUrl) => forwarded(baseUrl, 'PUT /dsk-0/a'),
  'an object is copied from another host': async (baseUrl) => {
    const objects = new RemoteObjects(auth);
    const source = { ...ids, hostId, baseUrl, key: 'a', signal: lasting };
    const { read: readAll } = await objects.open(source).finally(() => objects.close());
    return Array.fromAsync(readAll({ start: 0, end: 3 }));
  },
  'a host is asked': async (baseUrl) => {
    const requests = new PartRequests(auth, 1);
    const wanted = { purpose: 'link-request', claims: {}, hostId, baseUrl } as const;
    const head = { method: 'POST', target: '/', rawHeaders: ['Host', 'a'] };
    const answer = await requests.ask({ ...wanted, ...head }, 5_000);
    return text(answer).finally(() => requests.close());
  },
  'a shared file is read': async (baseUrl) => {
    const hub = { find: () => hostAt(baseUrl) };
    // With one place: if an answer kept it, the second call would be refused.
    const proxy = new DataProxy({ hub, auth, downloadsMax: 1, proxies: [] });
    const file = { ...call, method: 'GET', key: 'a', address: '127.0.0.1' } as const;
    for (let round = 0; round < 2; round += 1) {
      await proxy
        .open(file)
        .then(text)
        .catch((error: Error) => {
          if (/too many/u.test(error.message)) throw new TypeError('a place was kept');
        });
      await nextTurn();
    }
    proxy.close();
  },
  'a file of a sandbox is read': async (baseUrl) => {
    const proxy = new FilesProxy(auth);
    const wanted = { ...call, host: hostAt(baseUrl), method: 'GET', operation: read };
    return proxy
      .open(wanted)
      .then(text)
      .finally(() => proxy.close());
  },
  'an event is delivered': (baseUrl) =>
    sendWebhook(
      { url: `${baseUrl}/hook`, secret: `whsec_${Buffer.alloc(32).toString('base64')}` },
      { eventId: 'e', eventType: 'x', createdAt: '' } as never,
      networks,
    ),
  'a connection into a sandbox is opened': async (baseUrl) => {
    const asked = Promise.withResolvers<ToMain>();
    const doors = new Doors(asked.resolve, undefined);
    const opened = doors.open({} as never, false);
    opened.catch(() => undefined);
    const message = await asked.promise;
    const id = 'id' in message ? message.id : 0;
    doors.receive({ kind: 'opened', id, door: { kind: 'tunnel', url: baseUrl, headers: {} } });
    const socket = await opened;
    await once(socket.resume(), 'close');
  },
};

for (const [what, pieces] of Object.entries(GARBAGE_ANSWERS)) {
  test(`a process outlives ${what}`, async (t) => {
    using server = await serveGarbage(pieces);
    const outcomes = await Promise.all(
      Object.values(callers).map((make) =>
        make(`http://127.0.0.1:${server.port}`).catch((error: unknown) => error),
      ),
    );
    for (const outcome of outcomes) t.false(outcome instanceof TypeError, String(outcome));
  });

  test(`an agent outlives its egress proxy: ${what}`, async (t) => {
    await using directory = await temporaryDirectory();
    const path = join(directory.path, 'control.sock');
    using _server = await serveGarbage(pieces, { path });
    const client = new EgressClient(path);
    await client.call('GET', '/slots').catch(() => undefined);
    await client.watch(AbortSignal.timeout(5_000)).catch(() => undefined);
    t.pass();
  });
}
