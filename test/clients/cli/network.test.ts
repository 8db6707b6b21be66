/* How the command line makes its requests, besides what the runtime's own `fetch` does. */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import type { RequestListener } from 'node:http';
import test from 'ava';
import { nodeFetch } from '../../../clients/cli/src/net/node-fetch.ts';
import { Upload } from '../../../clients/cli/src/ssh/sftp/upload.ts';
import { Berth, type FetchAnswer, type FetchInit } from '../../../clients/sdk/src/index.ts';
import { Cli } from '../../helpers/cli.ts';
import { serve } from '../../helpers/served.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { waitFor } from '../../helpers/wait.ts';
import { MiB } from '../../../shared/units.ts';

/** Answers with what was sent. */
const echo: RequestListener = (request, response) => {
  response.setHeader('x-sent', JSON.stringify([request.method, request.url, request.headers]));
  request.pipe(response);
};

async function contentOf({ body }: FetchAnswer): Promise<Buffer> {
  const reader = body?.getReader();
  const pieces: Uint8Array[] = [];
  for (;;) {
    const part = await reader?.read();
    if (part === undefined || part.done) return Buffer.concat(pieces);
    pieces.push(part.value);
  }
}

const init = (changes: Partial<FetchInit> = {}): FetchInit => ({
  method: 'PUT',
  headers: { 'x-mine': 'yes' },
  signal: new AbortController().signal,
  ...changes,
});

test('text, bytes and streams are sent and come back, also long ones', async (t) => {
  const [, url] = await serve(t, echo);
  const long = randomBytes(3 * MiB);
  const half = long.length / 2;
  const streamed = (): ReadableStream<Uint8Array> =>
    ReadableStream.from([long.subarray(0, half), long.subarray(half)]);
  for (const body of ['söme text', '', Buffer.from('bytes'), long, streamed()]) {
    const answer = await nodeFetch(url, init({ body, duplex: 'half' }));
    const sent = body instanceof ReadableStream ? long : Buffer.from(body);
    t.true(answer.ok);
    t.true((await contentOf(answer)).equals(sent));
    const [method, , headers] = JSON.parse(answer.headers.get('X-Sent') ?? '') as [
      string,
      string,
      Record<string, string>,
    ];
    t.like({ method, headers }, { method: 'PUT', headers: { 'x-mine': 'yes' } });
    const length = body instanceof ReadableStream ? undefined : String(sent.length);
    t.is(headers['content-length'], length);
  }
  const blob = new Blob(['blob']) as FetchInit['body'] & object;
  await t.throwsAsync(nodeFetch(url, init({ body: blob })), { message: /cannot be sent/u });
});

test('a connection serves one request after the other, whether their answers are read or not', async (t) => {
  const ports = new Set<number | undefined>();
  const [, url] = await serve(t, (request, response) => {
    ports.add(request.socket.remotePort);
    if (request.url === '/empty') response.writeHead(204).end();
    else if (request.url === '/none') response.end();
    else response.setHeader('content-length', 6).end('unread');
  });
  for (const path of ['/some', '/none', '/empty', '/some']) {
    await nodeFetch(url + path, init({ method: 'GET' }));
  }
  const head = await nodeFetch(`${url}/some`, init({ method: 'HEAD' }));
  t.is(await head.text(), '');
  t.is(await (await nodeFetch(`${url}/some`, init({ method: 'DELETE' }))).text(), 'unread');
  t.is(ports.size, 1);
});

test('a redirection is followed as the runtime follows it, without the credentials elsewhere', async (t) => {
  const [, target] = await serve(t, echo);
  const [, url] = await serve(t, (request, response) => {
    request.resume();
    response.writeHead(307, { location: `${target}/moved` }).end();
  });
  const headers = { authorization: 'Bearer secret' };
  const answer = await nodeFetch(`${url}/here`, init({ method: 'POST', headers, body: 'again' }));
  t.is(await answer.text(), 'again');
  const [method, path, sent] = JSON.parse(answer.headers.get('x-sent') ?? '') as [
    string,
    string,
    Record<string, string>,
  ];
  t.deepEqual([method, path, sent['authorization']], ['POST', '/moved', undefined]);
});

test('what breaks off or is ended rejects, before the answer and within it', async (t) => {
  let closed = 0;
  const [server, url] = await serve(t, (request, response) => {
    request.socket.once('close', () => {
      closed += 1;
    });
    if (request.url === '/silent') return;
    response.writeHead(200, { 'content-length': request.url === '/short' ? 10 : MiB });
    response.write('begun');
    if (request.url !== '/long') setTimeout(() => request.socket.destroy(), 50);
  });
  const ending = new AbortController();
  const waiting = nodeFetch(`${url}/silent`, init({ method: 'GET', signal: ending.signal }));
  await once(server, 'request');
  ending.abort();
  await t.throwsAsync(waiting, { name: 'AbortError' });
  await t.throwsAsync(nodeFetch(`${url}/short`, init({ method: 'GET' })));
  const broken = await nodeFetch(`${url}/broken`, init({ method: 'GET' }));
  await t.throwsAsync(broken.text());
  await waitFor('the connections to end', async () => closed === 3);
  const left = await nodeFetch(`${url}/long`, init({ method: 'GET' }));
  await left.body?.cancel();
  await waitFor('the connection of the answer that was left', async () => closed === 4);
  server.closeAllConnections();
  server.close();
  await t.throwsAsync(nodeFetch(url, init({ method: 'GET' })), { code: 'ECONNREFUSED' });
});

test("a command does not load the runtime's fetch, but where the environment names a proxy", async (t) => {
  const asked: string[] = [];
  const [server, url] = await serve(t, (request, response) => {
    asked.push(request.url ?? '');
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ success: true, data: { sandboxes: [] } }));
  });
  server.on('connect', (request, socket) => {
    asked.push(request.url ?? '');
    socket.end('HTTP/1.1 502 Bad Gateway\r\n\r\n');
  });
  await using directory = await temporaryDirectory();
  const cli = await Cli.in(directory.path);
  const watch = `process.on('exit', () => console.error(
    process.moduleLoadList.some((name) => name.endsWith('deps/undici/undici')) ? 'loaded' : 'spared'))`;
  const env = {
    BERTH_URL: url,
    BERTH_API_KEY: 'key-x',
    NODE_OPTIONS: `--import data:text/javascript,${encodeURIComponent(watch)}`,
  };
  const listed = await cli.run(['sandbox', 'ls', '--json'], { env });
  t.deepEqual(listed, { code: 0, stdout: '[]\n', stderr: 'spared\n' });
  asked.length = 0;
  const proxy = { NODE_USE_ENV_PROXY: '1', HTTP_PROXY: url };
  await cli.run(['sandbox', 'ls'], {
    env: { ...env, ...proxy, BERTH_URL: 'http://berth.invalid' },
  });
  t.true(asked.length > 0 && asked.every((path) => path.includes('berth.invalid')), asked.join());
});

test('a command on a disk whose answer is lost is not sent again, and the user is told', async (t) => {
  const id = 'dsk-0123456789abcdef';
  const sent: string[] = [];
  const [, url] = await serve(t, (request, response) => {
    const { method = '', url: path = '', socket } = request;
    sent.push(`${method} ${path}`);
    if (method === 'POST') socket.destroy();
    else response.end(JSON.stringify({ success: true, data: [{ id, name: 'work' }] }));
  });
  await using directory = await temporaryDirectory();
  const cli = await Cli.in(directory.path);
  const env = { BERTH_URL: url, BERTH_API_KEY: 'key-none' };
  const ran = await cli.run(['disk', 'exec', 'work', 'true'], { env });
  t.is(ran.code, 125);
  t.regex(ran.stderr, /: look whether the command was run before you repeat it\.\n$/u);
  t.deepEqual(sent, ['GET /api/disks?name=work', `POST /api/disks/${id}/exec`]);
});

test('a client of SFTP is told that the server refuses its upload, while a write waits', async (t) => {
  const sandbox = { sandbox_id: '01a20a95-15e4-7666-9759-df441ffbf723', name: 'box' };
  const refusal = { success: false, error: 'the disk is full', code: 'no_space' };
  const [, url] = await serve(t, (request, response) => {
    response.setHeader('content-type', 'application/json');
    if (request.method === 'PUT') {
      request.once('data', () => {
        request.pause();
        response.writeHead(409).end(JSON.stringify(refusal));
      });
    } else response.end(JSON.stringify({ success: true, data: sandbox }));
  });
  const berth = new Berth({ baseUrl: url, apiKey: 'key-none', fetch: nodeFetch });
  const { files } = await berth.sandboxes.get(sandbox.sandbox_id);
  const upload = new Upload(files, '/file', { kept: 0, appends: false, write: {} });
  const piece = randomBytes(MiB);
  const all = async (): Promise<void> => {
    for (let n = 0; n < 64; n += 1) await upload.write(n * MiB, piece);
  };
  await t.throwsAsync(all(), { message: 'the disk is full' });
  await t.throwsAsync(upload.close(), { message: 'the disk is full' });
});

test('an upload that is redirected is not sent on, and names the URL to use', async (t) => {
  const disk = { id: 'dsk-0123456789abcdef', name: 'work' };
  let uploads = 0;
  const [, url] = await serve(t, (request, response) => {
    if (request.method === 'PUT') {
      uploads += 1;
      response.writeHead(308, { location: 'https://berth.example/file' }).end();
    } else response.end(JSON.stringify({ success: true, data: disk }));
  });
  const berth = new Berth({ baseUrl: url, apiKey: 'key-none', fetch: nodeFetch });
  const { files } = await berth.disks.get(disk.id);
  const content = randomBytes(3 * MiB);
  await t.throwsAsync(
    files.write('file', () => ReadableStream.from([content])),
    {
      code: 'redirected',
      message: `${url} redirects the upload to https://berth.example`,
    },
  );
  t.is(uploads, 1);
});

test('a wait for a sandbox to run ends when it has failed', async (t) => {
  const id = '01a20a95-15e4-7666-9759-df441ffbf723';
  const sandbox = { sandbox_id: id, name: 'box', status: 'failed' };
  const [, url] = await serve(t, (_request, response) => {
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ success: true, data: sandbox }));
  });
  await using directory = await temporaryDirectory();
  const cli = await Cli.in(directory.path);
  const env = { BERTH_URL: url, BERTH_API_KEY: 'key-none' };
  const waited = await cli.run(['sandbox', 'wait', id, '--timeout', '1s'], { env });
  t.is(waited.code, 1);
  t.regex(waited.stderr, /^berth: box has failed: berth sandbox get box says why, /u);
});
