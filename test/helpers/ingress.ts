import assert from 'node:assert';
import { execFile } from 'node:child_process';
import { readdir, readFile, readlink, rename } from 'node:fs/promises';
import { type IncomingMessage, request as httpRequest, type RequestOptions } from 'node:http';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { routeIdOf } from '../../shared/ids.ts';
import type { ApiClient } from './api.ts';
import { Daemon } from './daemon.ts';
import { processesMarked } from './host.ts';
import { outputOf, sandboxPath } from './sandboxes.ts';
import { waitFor } from './wait.ts';

const ZONE = 'sbx.localhost';
const BACKEND = new URL('../fixtures/port-backend.ts', import.meta.url).pathname;

export const hostOf = (port: number, sandboxId: string): string =>
  `${port}-${routeIdOf(sandboxId)}.${ZONE}`;

const childrenOf = async (pid: string): Promise<string[]> => {
  const tasks = await readdir(join('/proc', pid, 'task'));
  const texts = await Promise.all(
    tasks.map((task) => readFile(join('/proc', pid, 'task', task, 'children'), 'utf8')),
  );
  return texts.flatMap((text) => text.split(' ')).filter((child) => child.trim() !== '');
};

/** A process of a container that is in the sandbox's own network namespace. */
export async function processInside(sandboxId: string): Promise<string> {
  const outside = await readlink('/proc/self/ns/net');
  const shims = (await processesMarked(sandboxId)).filter((line) =>
    line.includes('container-shim'),
  );
  let generation = shims.map((line) => line.split(' ')[0] ?? '');
  while (generation.length > 0) {
    for (const pid of generation) {
      const namespace = await readlink(join('/proc', pid, 'ns/net')).catch(() => outside);
      if (namespace !== outside) return pid;
    }
    const next = await Promise.all(generation.map((pid) => childrenOf(pid).catch(() => [])));
    generation = next.flat();
  }
  throw new Error(`no process of sandbox ${sandboxId} was found`);
}

/** Serves test/fixtures/port-backend.ts in the network of a sandbox that is a container. */
export async function startBackend(
  sandboxId: string,
  port: number,
  directory: string,
  address = '0.0.0.0',
): Promise<Daemon> {
  const pid = await processInside(sandboxId);
  const enter = ['nsenter', `--net=/proc/${pid}/ns/net`];
  const backend = new Daemon(
    `backend of ${sandboxId}`,
    [...enter, process.execPath, BACKEND, String(port), address],
    {},
    join(directory, `backend-${sandboxId}-${port}.log`),
  );
  backend.start();
  await waitFor('the backend', async () =>
    (await backend.readLog().catch(() => '')).includes('listening'),
  );
  return backend;
}

const ONE_AT_A_TIME = new URL('../fixtures/one-at-a-time.py', import.meta.url);

/** Starts a server in a sandbox that serves one connection until it ends, then the next. */
export async function serveOneAtATime(api: ApiClient, id: string, port: number): Promise<void> {
  const program = await readFile(ONE_AT_A_TIME, 'utf8');
  const start = `setsid python3 /root/server.py ${port} >/root/server.log 2>&1 &`;
  await outputOf(api, id, `cat >/root/server.py <<'END'\n${program}END\n${start}`);
}

/** Makes a port public. */
export async function expose(api: ApiClient, sandboxId: string, port: number): Promise<void> {
  const reply = await api.call('PUT', `${sandboxPath(sandboxId)}/ports/${port}`);
  assert(reply.status === 200 || reply.status === 201, JSON.stringify(reply.body));
}

/** Creates a port token. */
export const newPortToken = (
  api: ApiClient,
  sandboxId: string,
  port: number,
): Promise<{ id: string; token: string }> =>
  api.data('POST', `${sandboxPath(sandboxId)}/port-tokens`, { port });

export interface PortReply {
  readonly status: number;
  readonly answer: IncomingMessage;
  readonly body: Buffer;
  /** The local port of the client's connection. */
  readonly localPort: number | undefined;
  /** The body as JSON. */
  json<T>(): T;
}

type Options = Omit<RequestOptions, 'host'> & { readonly body?: Buffer | string };

/** Sends a request to an ingress on the loopback address. */
export async function ask(
  ingressPort: number,
  host: string,
  path = '/request',
  { body, headers, ...options }: Options = {},
): Promise<PortReply> {
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
  const sent = httpRequest({
    agent: false,
    ...{ host: '127.0.0.1', port: ingressPort, path, ...options },
    headers: { host, ...(headers as Record<string, string>) },
  });
  sent.once('response', resolve);
  sent.once('error', reject);
  sent.end(body);
  const answer = await promise;
  const { localPort } = answer.socket;
  const chunks: Buffer[] = [];
  for await (const chunk of answer) chunks.push(chunk as Buffer);
  const all = Buffer.concat(chunks);
  return {
    ...{ status: answer.statusCode ?? 0, answer, body: all, localPort },
    json: <T>() => JSON.parse(all.toString('utf8')) as T,
  };
}

/** Writes a new self-signed certificate for the zone; files are replaced, not written in place. */
export async function writeCertificate(certPath: string, keyPath: string): Promise<void> {
  const [cert, key] = [`${certPath}.new`, `${keyPath}.new`];
  await promisify(execFile)('openssl', [
    ...['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes'],
    ...['-days', '2', '-subj', `/CN=*.${ZONE}`, '-addext', `subjectAltName=DNS:*.${ZONE}`],
    ...['-keyout', key, '-out', cert],
  ]);
  await rename(key, keyPath);
  await rename(cert, certPath);
}
