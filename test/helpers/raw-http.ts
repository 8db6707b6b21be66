import { connect } from 'node:net';

export interface RawReply {
  readonly status: number;
  readonly headers: ReadonlyMap<string, string>;
  readonly body: Buffer;
  readonly text: string;
}

const HEAD_END = '\r\n\r\n';

/** Splits the bytes of a connection into answers; every answer must announce its length. */
function splitReplies(bytes: Buffer, methods: readonly string[]): RawReply[] {
  const replies: RawReply[] = [];
  let rest = bytes;
  while (rest.length > 0) {
    const end = rest.indexOf(HEAD_END);
    if (end < 0) throw new Error(`no answer: ${rest.toString('latin1')}`);
    const [first = '', ...lines] = rest.toString('latin1', 0, end).split('\r\n');
    const headers = new Map(
      lines.map((line) => [
        line.slice(0, line.indexOf(':')).toLowerCase(),
        line.slice(line.indexOf(':') + 1).trim(),
      ]),
    );
    const bodyless = methods[replies.length] === 'HEAD';
    const length = bodyless ? 0 : Number(headers.get('content-length') ?? '0');
    const from = end + HEAD_END.length;
    const body = rest.subarray(from, from + length);
    const text = body.toString('utf8');
    replies.push({ status: Number(first.split(' ')[1]), headers, body, text });
    rest = rest.subarray(from + length);
  }
  return replies;
}

/**
 * Writes bytes to a server at once and reads answers until it closes: the last request should say
 * `Connection: close`. For what fetch cannot or will not send.
 * @param end closes our side after the bytes, for a server that might wait for more
 */
export async function sendRaw(
  baseUrl: string,
  bytes: string | Buffer,
  { end = false } = {},
): Promise<RawReply[]> {
  const { hostname, port } = new URL(baseUrl);
  const socket = connect(Number(port), hostname);
  const chunks: Buffer[] = [];
  socket.on('data', (chunk: Buffer) => chunks.push(chunk));
  socket.on('error', () => undefined); // The server may close before it has read everything.
  if (end) socket.end(bytes);
  else socket.write(bytes);
  await new Promise((resolve) => {
    socket.once('close', resolve);
  });
  const requests = bytes.toString('latin1').matchAll(/([A-Z]+) \S+ HTTP\/1\.1\r\n/gu);
  const methods = Array.from(requests, ([, method = '']) => method);
  return splitReplies(Buffer.concat(chunks), methods);
}

/** A request as bytes. */
export function request(
  method: string,
  path: string,
  headers: Record<string, string> = {},
  body = '',
): string {
  const lines = Object.entries({
    host: 'test',
    ...(body === '' ? {} : { 'content-length': String(Buffer.byteLength(body)) }),
    ...headers,
  }).map(([name, value]) => `${name}: ${value}\r\n`);
  return `${method} ${path} HTTP/1.1\r\n${lines.join('')}\r\n${body}`;
}

export interface RawOutcome {
  /** Statuses of all answers, in order. */
  readonly statuses: readonly number[];
  /** The server closed the connection. */
  readonly isClosed: boolean;
}

/**
 * Writes bytes to a server and sees how many answers it gives until it closes the connection or has
 * said nothing for a while.
 */
export async function provoke(
  baseUrl: string,
  bytes: Buffer,
  patienceMs = 10_000,
): Promise<RawOutcome> {
  const { hostname, port } = new URL(baseUrl);
  const socket = connect(Number(port), hostname);
  let received = '';
  let isClosed = true;
  const giveUp = (): void => {
    isClosed = false;
    socket.destroy();
  };
  let patience = setTimeout(giveUp, patienceMs);
  socket.on('data', (chunk: Buffer) => {
    received += chunk.toString('latin1');
    clearTimeout(patience);
    patience = setTimeout(giveUp, patienceMs);
  });
  socket.on('error', () => undefined);
  socket.write(bytes);
  await new Promise((resolve) => {
    socket.once('close', resolve);
  });
  clearTimeout(patience);
  const statuses = [...received.matchAll(/HTTP\/1\.1 (\d{3}) /gu)].map(([, code]) => Number(code));
  return { statuses, isClosed };
}

/** An answer, interim ones too, as it came. */
export interface RawAnswer {
  readonly status: number;
  readonly headers: readonly (readonly [name: string, value: string])[];
  /** Without the framing of its chunks. */
  readonly body: Buffer;
}

/** Takes chunks apart. @throws Error when they are cut short */
function joinChunks(bytes: Buffer): { readonly body: Buffer; readonly rest: Buffer } {
  const chunks: Buffer[] = [];
  for (let at = 0; ;) {
    const end = bytes.indexOf('\r\n', at);
    const length = Number.parseInt(bytes.toString('latin1', at, end), 16);
    const next = end + 2 + length;
    if (end < 0 || Number.isNaN(length) || bytes.length < next + 2) throw new Error('cut short');
    if (length === 0) return { body: Buffer.concat(chunks), rest: bytes.subarray(next + 2) };
    chunks.push(bytes.subarray(end + 2, next));
    at = next + 2;
  }
}

/** Splits the bytes of a connection, which end it, into answers. @throws Error when cut short */
function splitAnswers(bytes: Buffer, method: string): RawAnswer[] {
  const answers: RawAnswer[] = [];
  for (let rest = bytes; rest.length > 0;) {
    const end = rest.indexOf(HEAD_END);
    if (end < 0) throw new Error(`no answer: ${rest.toString('latin1')}`);
    const [first = '', ...lines] = rest.toString('latin1', 0, end).split('\r\n');
    const headers = lines.map((line) => {
      const colon = line.indexOf(': ');
      return [line.slice(0, colon), line.slice(colon + 2)] as const;
    });
    const valueOf = (wanted: string): string | undefined =>
      headers.find(([name]) => name.toLowerCase() === wanted)?.[1];
    const status = Number(first.split(' ')[1]);
    rest = rest.subarray(end + HEAD_END.length);
    const length = Number(valueOf('content-length') ?? rest.length);
    let body: Buffer = Buffer.alloc(0);
    if (method === 'HEAD' || status < 200 || status === 204 || status === 304) {
      // There is none.
    } else if (valueOf('transfer-encoding') === undefined) {
      if (rest.length < length) throw new Error('cut short');
      [body, rest] = [rest.subarray(0, length), rest.subarray(length)];
    } else ({ body, rest } = joinChunks(rest));
    answers.push({ status, headers, body });
  }
  return answers;
}

/**
 * Sends one request, which must be the last of its connection, and reads its answers.
 * @throws Error when the connection ends within an answer
 */
export async function readAnswers(baseUrl: string, bytes: Buffer): Promise<RawAnswer[]> {
  const { hostname, port } = new URL(baseUrl);
  const socket = connect(Number(port), hostname);
  const chunks: Buffer[] = [];
  socket.on('data', (chunk: Buffer) => chunks.push(chunk));
  socket.on('error', () => undefined); // The server may close before it has read everything.
  socket.write(bytes);
  await new Promise((resolve) => {
    socket.once('close', resolve);
  });
  const [method = ''] = bytes.toString('latin1').split(' ');
  return splitAnswers(Buffer.concat(chunks), method);
}
