/* The link to a guest that may send anything: to the real guest agent, and to impostors. */
import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { SocketGuestLink } from '../../../../agent/machines/shim/socket-guest-link.ts';
import { encodeGuestFrame } from '../../../../agent/machines/guest-link/guest-protocol.ts';
import {
  collect,
  GuestPort,
  guestSettings,
  processSpec,
  TestGuest,
} from '../../../helpers/guest.ts';
import { orderly, PlayedGuest } from '../../../helpers/played-guest.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';
import { waitFor } from '../../../helpers/wait.ts';

/** A socket at which whoever connects is handed to `serve`. */
async function listen(
  serve: (socket: Socket) => void,
): Promise<{ path: string; connections: () => number } & AsyncDisposable> {
  const directory = await temporaryDirectory();
  const path = join(directory.path, 'guest');
  const sockets = new Set<Socket>();
  let connections = 0;
  const server: Server = createServer((socket) => {
    connections += 1;
    sockets.add(socket);
    socket.on('error', () => undefined).once('close', () => sockets.delete(socket));
    serve(socket);
  }).listen(path);
  await once(server, 'listening');
  return {
    path,
    connections: () => connections,
    async [Symbol.asyncDispose]() {
      server.close();
      for (const socket of sockets) socket.destroy();
      await directory[Symbol.asyncDispose]();
    },
  };
}

test('a channel that breaks is opened again, and the processes are still there', async (t) => {
  await using guest = await TestGuest.start();
  const port = new GuestPort(guest.socket);
  let present: Socket | undefined;
  await using listener = await listen((socket) => {
    present = socket;
    const wire = port.connect();
    socket.pipe(wire);
    wire.pipe(socket);
    wire.on('error', () => undefined).once('close', () => socket.destroy());
    socket.once('close', () => wire.destroy());
  });
  const link = new SocketGuestLink(listener.path);
  const [channel] = await once(link, 'opened').then(() => [link.channel]);
  await channel?.configure(guestSettings());
  const spec = processSpec('sleep 1000', { isFollowed: false });
  await channel?.start(spec);
  const [closed, opened] = [once(link, 'closed'), once(link, 'opened')];
  present?.destroy();
  await closed;
  t.is(link.channel, undefined);
  await opened;
  t.deepEqual(
    link.processes.map(({ id }) => id),
    [spec.id],
  );
  const channelAgain = link.channel;
  if (channelAgain === undefined) return t.fail();
  t.is((await collect(channelAgain, processSpec('echo again'))).text, 'again\n');
  link.close();
});

test('a guest that violates the protocol is connected to again, and never believed', async (t) => {
  await using listener = await listen((socket) => socket.write('\0garbage\0'.repeat(2_000_000)));
  const link = new SocketGuestLink(listener.path);
  link.on('opened', () => t.fail());
  await waitFor('another try', async () => listener.connections() >= 3);
  t.is(link.channel, undefined);
  link.close();
});

test('a guest that violates the protocol right after its first message is connected to again', async (t) => {
  let garbled = 0;
  await using listener = await listen((socket) => {
    const guest = new PlayedGuest((frame) => {
      if (frame.type !== 'list' || garbled === 3) return orderly(frame);
      garbled += 1;
      // In one piece with the answer: the channel is open and over at once.
      const [answer] = orderly(frame);
      if (answer !== undefined) {
        guest.write(Buffer.concat([encodeGuestFrame(answer), Buffer.from([1, 1, 1, 0])]));
      }
      return [];
    });
    socket.pipe(guest.theirs).pipe(socket);
    guest.theirs.on('error', () => undefined);
  });
  const link = new SocketGuestLink(listener.path);
  await waitFor('a channel that lasts', async () => {
    const { channel } = link;
    return channel?.ping().then(
      () => true,
      () => false,
    );
  });
  t.is(garbled, 3);
  link.close();
});

test('a silent guest is connected to again', async (t) => {
  await using listener = await listen((socket) => socket.resume());
  const link = new SocketGuestLink(listener.path, { openTimeoutMs: 50 });
  await waitFor('another try', async () => listener.connections() >= 3);
  t.is(link.channel, undefined);
  link.close();
});

test('a closed link does not reconnect', async (t) => {
  await using listener = await listen((socket) => socket.destroy());
  const link = new SocketGuestLink(listener.path);
  await waitFor('a try', async () => listener.connections() >= 1);
  link.close();
  const before = listener.connections();
  await sleep(500);
  t.true(listener.connections() <= before + 1);
});

test('nobody waits for the guest of a closed link', async (t) => {
  await using listener = await listen((socket) => socket.resume());
  const link = new SocketGuestLink(listener.path);
  const { signal } = new AbortController();
  const waiting = link.opened(signal);
  link.close();
  await t.throwsAsync(waiting, { name: 'AbortError' });
  await t.throwsAsync(link.opened(signal), { name: 'AbortError' });
});

test('a link waits for a guest that is not there yet', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'guest');
  const link = new SocketGuestLink(path);
  const server = createServer();
  await sleep(150);
  server.listen(path);
  await once(server, 'connection').then(([socket]) => (socket as Socket).destroy());
  link.close();
  server.close();
  t.pass();
});
