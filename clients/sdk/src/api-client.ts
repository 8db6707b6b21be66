import type { Client } from 'openapi-fetch';
import type { paths } from './generated/api.ts';
import type { Fetch, FetchAnswer, FetchInit } from './transport.ts';

/**
 * @internal The API's calls by method and path, with the types that openapi-fetch derives from the
 * API description. Its own client would load all of a runtime's `Request` and `Headers` for each
 * program.
 */
export type ApiClient = Pick<Client<paths>, 'GET' | 'PUT' | 'POST' | 'DELETE'>;

type Value = string | number | boolean;
type Fields = Readonly<Record<string, Value | readonly Value[] | undefined>>;

/** Parts of a call; the types of {@link ApiClient} say which of it. */
interface CallInit {
  readonly params?: { readonly path?: Fields; readonly query?: Fields; readonly header?: Fields };
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: unknown;
  readonly querySerializer?: () => string;
  readonly bodySerializer?: () => NonNullable<FetchInit['body']>;
  readonly signal: AbortSignal;
  readonly duplex?: 'half';
}

/** @returns each field that has a value, and one with several as often as it has values */
const definedFields = (fields: Fields = {}): [name: string, value: string][] =>
  Object.entries(fields).flatMap(([name, value]) =>
    value === undefined ? [] : [value].flat().map((each): [string, string] => [name, String(each)]),
  );

/** @param path with `{name}` for each parameter */
function urlOf(path: string, { params = {}, querySerializer }: CallInit): string {
  const filled = definedFields(params.path).reduce(
    (url, [name, value]) => url.replace(`{${name}}`, () => encodeURIComponent(value)),
    path,
  );
  const query =
    querySerializer?.() ??
    definedFields(params.query)
      .map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(value)}`)
      .join('&');
  return query === '' ? filled : `${filled}?${query}`;
}

function initOf(method: string, init: CallInit, credentials: Record<string, string>): FetchInit {
  const { params = {}, headers, body, bodySerializer, signal, duplex } = init;
  const json: Record<string, string> =
    body === undefined ? {} : { 'content-type': 'application/json' };
  const given = Object.fromEntries(definedFields(params.header));
  return {
    method,
    headers: { ...json, ...credentials, ...headers, ...given },
    ...(body === undefined ? {} : { body: bodySerializer?.() ?? JSON.stringify(body) }),
    signal,
    ...(duplex === undefined ? {} : { duplex }),
  };
}

const NO_CONTENT = 204;

/** @returns the answer with its body, read as JSON; an error of a proxy may be other text */
async function readAnswer(response: FetchAnswer) {
  const text = response.status === NO_CONTENT ? '' : await response.text();
  if (response.ok) {
    return { data: text === '' ? undefined : (JSON.parse(text) as unknown), response };
  }
  try {
    return { error: JSON.parse(text) as unknown, response };
  } catch {
    return { error: text, response };
  }
}

/** @internal A client for the API at a URL. */
export function createApiClient(
  baseUrl: string,
  credentials: Record<string, string>,
  fetch: Fetch,
): ApiClient {
  const method =
    (name: string) =>
    async (path: string, init: CallInit): Promise<unknown> =>
      readAnswer(await fetch(baseUrl + urlOf(path, init), initOf(name, init, credentials)));
  const client: Record<keyof ApiClient, (path: string, init: CallInit) => Promise<unknown>> = {
    GET: method('GET'),
    PUT: method('PUT'),
    POST: method('POST'),
    DELETE: method('DELETE'),
  };
  // The types of the calls are those of the API description, which no code could show.
  return client as unknown as ApiClient;
}
