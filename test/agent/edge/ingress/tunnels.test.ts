/* Tunnels to sandboxes of other hosts, over sockets. */
import { once } from 'node:events';
import { createServer as createHttpServer } from 'node:http';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { Doors } from '../../../../agent/edge/ingress/doors.ts';
import { TunnelServer, tunnelTo } from '../../../../agent/edge/ingress/tunnels.ts';
import { newAccountId, newHostId, newSandboxId } from '../../../../shared/ids.ts';
import { EDGE_LIMITS } from '../../../../agent/edge/limits.ts';
import { createLogger } from '../../../../shared/log.ts';
import { KiB } from '../../../../shared/units.ts';

interface Owner {
  readonly door: ReturnType<typeof tunnelTo>;
  /** The owner's end of the tunnel. */
  readonly tunnel: Promise<Socket>;
  /** Resolves when the guest's connection is closed. */
  readonly guestClosed: Promise<unknown>;
}

/** A guest that does this once the first bytes come, and the way to it. */
async function startOwner(
  t: ExecutionContext,
  answer: (guest: Socket) => void,
  wakeMs = 0,
): Promise<Owner> {
  const guest = createServer((socket) => socket.once('data', () => answer(socket)));
  const guestClosed = once(guest, 'connection').then(([socket]) => once(socket as Socket, 'close'));
  guest.listen(0, '127.0.0.1');
  await once(guest, 'listening');
  const hostId = newHostId();
  const clusterSecrets = ['a secret of the cluster'] as const;
  const tunnels = new TunnelServer({
    ...{ hostId, clusterSecrets, log: createLogger('test', {}), hold: () => () => undefined },
    open: async () => {
      await sleep(wakeMs);
      const socket = connect((guest.address() as AddressInfo).port, '127.0.0.1');
      await once(socket, 'connect');
      return socket;
    },
  });
  const server = createHttpServer();
  const tunnel = once(server, 'upgrade').then(([, socket]) => socket as Socket);
  tunnels.serve(server);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => {
    tunnels.close();
    server.close();
    guest.close();
  });
  const ref = { accountId: newAccountId(), sandboxId: newSandboxId(), hostId, port: 80 };
  const { port } = server.address() as AddressInfo;
  const door = tunnelTo(clusterSecrets, `http://127.0.0.1:${port}`, ref, true);
  return { door, tunnel, guestClosed };
}

/** Opens the tunnel as the ingress of another host does. */
function open({ door }: Owner): Promise<Socket> {
  const doors = new Doors((message) => {
    if (message.kind === 'open') doors.receive({ kind: 'opened', id: message.id, door });
  }, undefined);
  const ref = { accountId: newAccountId(), sandboxId: newSandboxId(), hostId: newHostId() };
  return doors.open({ ...ref, port: 80 }, true);
}

const PIECE = Buffer.alloc(16 * KiB);

test('a guest that ends its connection loses none of what its caller is slow to read', async (t) => {
  let sentBytes = 0;
  const send = async (guest: Socket, tunnel: Socket): Promise<void> => {
    // Until the caller's buffers are full and the owner holds the rest.
    while (tunnel.writableLength === 0) {
      guest.write(PIECE);
      sentBytes += PIECE.length;
      await sleep(2);
      if (tunnel.writableLength > 0) await sleep(50);
    }
    guest.end();
  };
  const owner: Owner = await startOwner(t, (guest) => {
    owner.tunnel.then((tunnel) => send(guest, tunnel)).catch(() => t.fail());
  });
  const socket = await open(owner);
  socket.write('go');
  await owner.guestClosed;
  await sleep(100); // So that the owner has noticed.
  t.is((await buffer(socket)).length, sentBytes);
});

test('a sandbox of another host has as long to come up as one of this host', async (t) => {
  const wakeMs = EDGE_LIMITS.ingressOpenMsMax + 500;
  const socket = await open(await startOwner(t, (guest) => guest.end('bye'), wakeMs));
  socket.write('go');
  t.is(String(await buffer(socket)), 'bye');
});
