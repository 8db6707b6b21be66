import type { Server } from 'node:http';
import {
  type HttpServerOptions,
  type RenderRefusal,
  type RequestHandler,
  startHttpServer,
} from '../../shared/http/http-server.ts';
import { newRequestId } from '../../shared/ids.ts';
import { LIMITS } from '../../shared/limits.ts';
import { renderError, S3Error } from '../objects/protocol/errors.ts';

type Options = Omit<HttpServerOptions, 'name' | 'headerBytesMax' | 'render'>;

const CODES = { bad_request: 'InvalidRequest', no_capacity: 'SlowDown' } as const;

const render: RenderRefusal = (code, problem, { url = '' }) => ({
  contentType: 'application/xml',
  body: renderError(new S3Error(CODES[code], problem), url, newRequestId()),
});

/** The host's public address: the object API, and the WebSockets of process sessions. */
export function startPublicServer(options: Options, handle: RequestHandler): Promise<Server> {
  const { headerBytesMax } = LIMITS;
  const server = { ...options, name: 'public', headerBytesMax, hasUpgrades: true, render } as const;
  return startHttpServer(server, handle);
}
