import type { IncomingMessage, RequestListener, Server, ServerResponse } from 'node:http';
import { lingerAfterAnswer } from './early-answer.ts';
import { type HttpServerOptions, startHttpServer } from './http-server.ts';
import { LIMITS } from '../limits.ts';
import type { Registry } from '../metrics.ts';
import type { Refusal } from './strict-http.ts';

/** @returns what keeps the process from doing its work, or undefined when it is ready */
export type ReadinessCheck = () => Promise<string | undefined>;

interface OpsOptions {
  readonly http: Omit<HttpServerOptions, 'name' | 'headerBytesMax' | 'render'>;
  readonly registry: Registry;
  readonly ready: ReadinessCheck;
  /** Finds the listener of a path that needs authentication; each authenticates by itself. */
  readonly find?: (path: string) => RequestListener | undefined;
}

const render = (_code: unknown, problem: string): Refusal => ({
  contentType: 'text/plain',
  body: `${problem}\n`,
});

/**
 * Serves a process's internal port: `/healthz` (alive), `/readyz` (can do work), `/metrics`
 * (Prometheus text format), and what other parts of the cluster ask for. Never public.
 */
export function startOpsServer(options: OpsOptions): Promise<Server> {
  const { internalHeaderBytesMax: headerBytesMax } = LIMITS;
  const names = { name: 'internal', headerBytesMax, render, hasUpgrades: true } as const;
  const server = { ...options.http, ...names };
  return startHttpServer(server, (request, response) => answer(options, request, response));
}

async function answer(
  { registry, ready, find }: OpsOptions,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const handler = find?.(request.url ?? '');
  if (handler !== undefined) {
    handler(request, response);
    return;
  }
  // Only peers that prove they belong to the cluster may keep their connection.
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
      const text = await registry.metrics();
      response.writeHead(200, { 'content-type': registry.contentType }).end(text);
      break;
    }
    default: {
      response.writeHead(404).end('not found\n');
    }
  }
}
