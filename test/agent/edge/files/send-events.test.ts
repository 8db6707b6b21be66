/* Watches of directories, on a real guest agent, as the host leaves or their callers do. */
import { getEventListeners, once } from 'node:events';
import { createServer, get, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import test from 'ava';
import { sendEvents } from '../../../../agent/edge/files/send-events.ts';
import { AppError } from '../../../../shared/errors.ts';
import { startProcesses } from '../../../helpers/guest-processes.ts';

const ROOT = Buffer.from('/');

test('nothing of a watch is kept once it has ended, by its caller or by the host', async (t) => {
  await using fixture = await startProcesses();
  const { files } = fixture.processes;
  const closing = new AbortController();
  const ended: Promise<unknown>[] = [];
  const server = createServer((_request, response) => {
    const watch = async (): Promise<void> => {
      const operation = { type: 'watch', path: ROOT.toString('base64url') } as const;
      await using worker = await files.begin(operation);
      response.once('close', () => worker.fail(new AppError('cancelled', 'the caller is gone')));
      await sendEvents(worker, ROOT, response, closing.signal);
    };
    ended.push(watch());
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => server.close());
  const { port } = server.address() as AddressInfo;
  const open = async (): Promise<IncomingMessage> => {
    const asked = get({ port, host: '127.0.0.1', agent: false });
    const [answer] = (await once(asked, 'response')) as [IncomingMessage];
    return answer;
  };

  const left = await open();
  await once(left, 'data');
  t.is(getEventListeners(closing.signal, 'abort').length, 1);
  left.destroy();
  await Promise.all(ended);
  t.is(getEventListeners(closing.signal, 'abort').length, 0);

  const stayed = await open();
  await once(stayed, 'data');
  closing.abort(new AppError('unavailable', 'the host is shutting down; try again'));
  t.regex(await text(stayed), /event: end\ndata: \{"code":"unavailable"/u);
  await Promise.all(ended);
});
