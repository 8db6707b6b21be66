import { once } from 'node:events';
import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
} from 'node:http';
import { lingerAfterAnswer } from './early-answer.ts';
import { toError } from './errors.ts';
import type { Logger } from './log.ts';
import type { Registry } from './metrics.ts';
import { serveStrictly, STRICT_PARSER } from './strict-http.ts';

/** What keeps the process from doing its work, or undefined when it is ready. */
export type ReadinessCheck = () => Promise<string | undefined>;

interface OpsOptions {
  readonly host: string;
  readonly port: number;
  readonly metrics: Registry;
  readonly ready: ReadinessCheck;
  readonly log: Logger;
  /** What else is served below some paths, each with its own way to authenticate. */
  readonly find?: (path: string) => RequestListener | undefined;
}

// What a public server takes (Node's default, 16 KiB) must fit when it is passed on in a request of
// our own.
const HEADER_BYTES_MAX = 32 * 1024;

/**
 * The operator's port of a process: `/healthz` (alive), `/readyz` (can do work), `/metrics`
 * (Prometheus text format). Never public.
 */
export async function startOpsServer(options: OpsOptions): Promise<Server> {
  // An upload that is passed on may take any time.
  const limits = { ...STRICT_PARSER, maxHeaderSize: HEADER_BYTES_MAX, requestTimeout: 0 };
  const server = createServer(limits);
  serveStrictly(server, {
    // Whether the client of a request that is passed on may send its body is the handler's to say.
    handle: (request, response) => {
      answer(options, request, response).catch((error: unknown) => {
        response.writeHead(500).end(toError(error).message);
      });
    },
    render: (_request, problem) => ({ contentType: 'text/plain', body: `${problem}\n` }),
    onRefused: (_request, problem) => options.log.warn({ problem }, 'request:refused'),
  });
  server.listen(options.port, options.host);
  await once(server, 'listening');
  return server;
}

async function answer(
  { metrics, ready, find }: OpsOptions,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const handler = find?.(request.url ?? '');
  if (handler !== undefined) {
    handler(request, response);
    return;
  }
  // Only those who show that they belong to the cluster keep a connection.
  lingerAfterAnswer(request, response);
  switch (request.url) {
    case '/healthz': {
      response.writeHead(200).end('ok\n');
      break;
    }
    case '/readyz': {
      const problem = await ready();
      response.writeHead(problem === undefined ? 200 : 503).end(`${problem ?? 'ready'}\n`);
      break;
    }
    case '/metrics': {
      const text = await metrics.metrics();
      response.writeHead(200, { 'content-type': metrics.contentType }).end(text);
      break;
    }
    default: {
      response.writeHead(404).end('not found\n');
    }
  }
}
