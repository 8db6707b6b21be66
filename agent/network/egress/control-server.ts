import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { text } from 'node:stream/consumers';
import { createSecureContext, getCACertificates } from 'node:tls';
import { STRICT_HTTP } from '../../../shared/http/strict-http.ts';
import { parseJson } from '../../../shared/json.ts';
import { AddressGuard } from './address-guard.ts';
import type { EgressServer } from './egress-server.ts';
import { type HostEgress, PROTOCOL_VERSION, type SlotEgress } from './egress-settings.ts';
import { Resolver } from './resolver.ts';
import type { HostParts } from './slot.ts';

/** Root alone can connect, so that what arrives is the agent's own. */
interface Call {
  readonly server: EgressServer;
  /** The slot's address, if the path has one. */
  readonly slot: string;
  readonly body: unknown;
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
}

type Handle = (call: Call) => unknown;

/** Each answers with JSON, or with nothing. */
const CALLS: Readonly<Record<string, Handle>> = {
  'GET /version': () => ({ version: PROTOCOL_VERSION }),
  'PUT /host': ({ server, body }) => server.setHost(toParts(body as HostEgress)),
  'GET /slots': ({ server }) => server.slots,
  'PUT /slots/:slot': ({ server, slot, body }) => server.setSlot(slot, body as SlotEgress),
  'DELETE /slots/:slot': ({ server, slot }) => server.removeSlot(slot),
  'GET /slots/:slot/decisions': ({ server, slot }) => server.slot(slot)?.decisions ?? [],
  'POST /slots/:slot/drained': drained,
};

const PATH = /^(\/[a-z]+)(?:\/([\d.]+)(\/[a-z]+)?)?$/u;

/** The objects that the proxy makes from its host's settings. */
export function toParts({ resolver, trustedCertificates, ...addresses }: HostEgress): HostParts {
  const roots = [...getCACertificates('default'), ...getCACertificates('system')];
  const ca = [...new Set(roots), ...(trustedCertificates === '' ? [] : [trustedCertificates])];
  return {
    guard: new AddressGuard(addresses),
    resolver: new Resolver(resolver),
    trust: createSecureContext({ ca }),
  };
}

/**
 * The agent's way to its proxy: requests over a socket that only root can open. One long answer,
 * `GET /watch`, ends when the proxy does.
 * @param onWatchers called with the number of agents that watch, whenever it changes
 */
export function createControlServer(
  server: EgressServer,
  onWatchers: (count: number) => void,
): Server {
  const watchers = new Set<ServerResponse>();
  const watch = (response: ServerResponse): void => {
    watchers.add(response);
    onWatchers(watchers.size);
    response.once('close', () => {
      watchers.delete(response);
      onWatchers(watchers.size);
    });
    response.writeHead(200).flushHeaders();
  };
  const control = createServer({ ...STRICT_HTTP, requestTimeout: 0 }, (request, response) => {
    if (request.url === '/watch') return watch(response);
    answer(server, request, response).catch((error: unknown) => {
      // A message of a parser may quote what it parses.
      const problem = error instanceof SyntaxError ? 'not JSON' : String(error);
      response.writeHead(500).end(problem);
    });
  });
  control.timeout = 0;
  return control;
}

async function answer(
  server: EgressServer,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const [, room = '', slot, call = ''] = PATH.exec(request.url ?? '') ?? [];
  const path = slot === undefined ? room : `${room}/:slot${call}`;
  const handle = CALLS[`${request.method} ${path}`];
  if (handle === undefined) {
    response.writeHead(404).end();
    return;
  }
  const sent = await text(request);
  const body = sent === '' ? undefined : parseJson(sent);
  const result = await handle({ server, slot: slot ?? '', body, request, response });
  if (result === undefined) response.writeHead(204).end();
  else response.writeHead(200).end(JSON.stringify(result));
}

/** Answered when nothing to these hosts is under way; whoever asks may hang up before. */
async function drained({ server, slot, body, response }: Call): Promise<void> {
  const { patterns } = body as { patterns: string[] };
  const hangUp = new AbortController();
  response.once('close', () => hangUp.abort());
  await server.slot(slot)?.flights.drained(patterns, hangUp.signal);
}
