/* The fields of a form, read before anybody knows whose it is. */
import { once } from 'node:events';
import { createServer, type IncomingMessage } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import test from 'ava';
import { FormHeads, isPostForm, peekForm } from '../../../../../agent/edge/s3/http/post-form.ts';
import { StallClock } from '../../../../../shared/http/stall-clock.ts';
import { EDGE_LIMITS } from '../../../../../agent/edge/limits.ts';
import { waitFor } from '../../../../helpers/wait.ts';

const FIELD = '--x\r\nContent-Disposition: form-data; name="key"\r\n\r\nphoto\r\n';
const FILE =
  '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\ncontents\r\n--x--\r\n';
const FORM = FIELD + FILE;

/** Forms that clients of the test begin to send. */
class FormServer implements AsyncDisposable {
  readonly #server = createServer((request) => this.#requests.push(request));
  readonly #requests: IncomingMessage[] = [];
  readonly #clients: Socket[] = [];

  static async open(): Promise<FormServer> {
    const server = new FormServer();
    await once(server.#server.listen(0, '127.0.0.1'), 'listening');
    return server;
  }

  /** Sends the head of a form and the beginning of its body. */
  async begin(body: string): Promise<{ client: Socket; request: IncomingMessage }> {
    const { port } = this.#server.address() as AddressInfo;
    const client = connect(port, '127.0.0.1');
    client.on('error', () => undefined);
    this.#clients.push(client);
    const headers = [
      'POST /dsk-0 HTTP/1.1',
      'Host: test',
      'Content-Type: multipart/form-data; boundary=x',
      `Content-Length: ${FORM.length}`,
    ];
    const arrived = once(this.#server, 'request') as Promise<[IncomingMessage]>;
    client.write(`${headers.join('\r\n')}\r\n\r\n${body}`);
    const [request] = await arrived;
    return { client, request };
  }

  /** Ends the connections of all clients. */
  hangUp(): void {
    for (const client of this.#clients) client.destroy();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.hangUp();
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }
}

test('a form is read to its file, however its bytes come, and can then be read whole', async (t) => {
  await using server = await FormServer.open();
  for (const cut of [0, 1, FIELD.length, FIELD.length + 20, FORM.length - 1, FORM.length]) {
    const { client, request } = await server.begin(FORM.slice(0, cut));
    t.true(isPostForm(request));
    let isPeeked = false;
    const peeked = peekForm(request).finally(() => {
      isPeeked = true;
    });
    await waitFor('what came to be read', async () => isPeeked || request.readableLength === 0);
    client.write(FORM.slice(cut));
    const { fields, fileName } = await peeked;
    t.deepEqual([...fields], [['key', 'photo']]);
    t.is(fileName, 'a');
    t.is(await text(request), FORM, `cut at ${cut}`);
  }
});

test('a client that sends no more of its fields is found to stall, and its time ends', async (t) => {
  await using server = await FormServer.open();
  const { request } = await server.begin('--x\r\n');
  const clock = new StallClock(request.socket, {
    ...{ bytesPerSecondMin: 1000, stalledMs: 100, crowdedStalledMs: 100 },
  });
  const peeked = t.throwsAsync(peekForm(request, 60_000), { code: 'IncompleteBody' });
  await waitFor('the clock to run out', async () => clock.isStalled([request], false), 20_000);
  request.socket.destroy();
  await peeked;
  const late = await server.begin('--x\r\n');
  await t.throwsAsync(peekForm(late.request, 50), { code: 'MalformedPOSTRequest' });
});

test('forms whose fields do not come leave places to other addresses', async (t) => {
  await using server = await FormServer.open();
  const heads = new FormHeads([]);
  const begun: Promise<unknown>[] = [];
  for (let count = 0; count < EDGE_LIMITS.formHeadsPerHostMax / 2; count += 1) {
    const { request } = await server.begin('--x\r\n');
    begun.push(heads.peek(request, '192.0.2.1').catch(() => undefined));
  }
  const peek = async (address: string): Promise<unknown> => {
    const { request } = await server.begin(FORM);
    return heads.peek(request, address);
  };
  await t.throwsAsync(peek('192.0.2.1'), { code: 'SlowDown' });
  t.like(await peek('192.0.2.2'), { fileName: 'a' });
  server.hangUp();
  await Promise.all(begun);
});
