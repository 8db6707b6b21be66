import type { TSchema } from 'typebox';
import { LIMITS } from '../../shared/limits.ts';
import { Failure } from '../../shared/schemas/common.ts';
import type { Route } from './route.ts';

const API_VERSION = '1.0.0'; // See docs/api.md, Compatibility.

const STATUS_TEXT: Readonly<Record<number, string>> = {
  200: 'Success',
  201: 'Created',
  202: 'Accepted',
  204: 'Done',
  206: 'A part of the file, or several',
  304: 'Not modified',
  400: 'Invalid request body, parameters or identifiers',
  401: 'Missing or invalid API key',
  403: 'Access denied',
  404: 'Not found, or not owned by the account',
  409: 'Conflict',
  410: 'The link has expired',
  412: 'A precondition of the request failed',
  413: 'Request body too large',
  416: 'The file has no such part; Content-Range says its size',
  429: 'Too many at once; try again',
  500: 'Internal error',
  501: 'Not built yet',
  503: 'No capacity, or a part is unavailable; try again',
  504: 'Timed out',
};

const IDEMPOTENCY_KEY = {
  name: 'Idempotency-Key',
  in: 'header',
  required: false,
  description:
    'Makes the request happen at most once: repeated within 24 hours with the same key and body, ' +
    'it gets the first answer again (Idempotency-Replayed: true).',
  schema: { type: 'string', maxLength: LIMITS.idempotencyKeyLengthMax },
};

const IGNORED_FIELDS = {
  description:
    'Names the fields of the request body that were ignored because the endpoint has no such ' +
    'field, as in `colour, mounts[0].foo`. Absent when there are none.',
  schema: { type: 'string' },
};

const json = (schema: object) => ({ 'application/json': { schema } });
const FAILURE = { $ref: '#/components/schemas/Failure' };

function parametersOf(schema: TSchema | undefined, place: 'path' | 'query'): object[] {
  const { properties = {}, required = [] } = (schema ?? {}) as {
    properties?: Record<string, unknown>;
    required?: string[];
  };
  return Object.entries(properties).map(([name, property]) => {
    const { deprecated, description, lowerCase: _, ...rest } = property as Record<string, unknown>;
    return {
      name,
      in: place,
      required: place === 'path' || required.includes(name),
      ...(deprecated === true ? { deprecated } : {}),
      ...(description === undefined ? {} : { description }),
      schema: rest,
    };
  });
}

const FILE_HEADERS = [
  'Range',
  'If-Range',
  'If-Match',
  'If-None-Match',
  'If-Modified-Since',
  'If-Unmodified-Since',
].map((name) => ({ name, in: 'header', required: false, schema: { type: 'string' } }));

// The form that client generators understand.
const FILE_SCHEMA = { type: 'string', format: 'binary' };

/** Any type of content; 304 has none. */
const fileResponse = (status: number): [string, object] => [
  String(status),
  {
    description: STATUS_TEXT[status] ?? 'Success',
    ...(status === 304 ? {} : { content: { '*/*': { schema: FILE_SCHEMA } } }),
  },
];

/** Path parameters that a route does not describe are plain text. */
function pathParameters(route: Route): object[] {
  const described = parametersOf(route.params, 'path');
  if (described.length > 0) return described;
  return [...route.path.matchAll(/\{(\w+)\}/gu)].map(([, name]) => ({
    name,
    in: 'path',
    required: true,
    schema: { type: 'string' },
  }));
}

function responsesOf(route: Route): Record<string, object> {
  const failures = [...new Set([...route.errors, ...(route.public ? [] : [401]), 500, 503])];
  return Object.fromEntries([
    ...Object.entries(route.replies).map(([status, schema]) => [
      status,
      { description: STATUS_TEXT[Number(status)] ?? 'Success', content: json(schema) },
    ]),
    ...(route.empty ?? []).map((status) => [status, { description: STATUS_TEXT[status] }]),
    ...(route.files ?? []).map(fileResponse),
    ...failures.map((status) => [
      String(status),
      {
        description: STATUS_TEXT[status] ?? 'Error',
        content:
          status === 401 && route.plainUnauthorized === true
            ? { 'text/plain': { schema: { type: 'string' } } }
            : json(route.failures?.[status] ?? FAILURE),
      },
    ]),
  ]) as Record<string, object>;
}

const BEFORE_THE_BODY: ReadonlySet<string> = new Set(['401', '413']);

/** Answers that come after the body was read say which of its fields were ignored. */
function withIgnoredFields(responses: Record<string, object>): Record<string, object> {
  const headers = { 'X-Ignored-Fields': { $ref: '#/components/headers/IgnoredFields' } };
  return Object.fromEntries(
    Object.entries(responses).map(([status, response]) => [
      status,
      BEFORE_THE_BODY.has(status) ? response : { ...response, headers },
    ]),
  );
}

function operationOf(route: Route): object {
  const responses = responsesOf(route);
  return {
    operationId: route.operationId,
    summary: route.summary,
    tags: [route.tag],
    ...(route.public === true ? { security: [] } : {}),
    parameters: [
      ...pathParameters(route),
      ...parametersOf(route.query, 'query'),
      ...(route.files === undefined ? [] : FILE_HEADERS),
      ...(route.idempotent === true ? [IDEMPOTENCY_KEY] : []),
    ],
    ...(route.body === undefined
      ? {}
      : { requestBody: { required: route.bodyOptional !== true, content: json(route.body) } }),
    responses: route.body === undefined ? responses : withIgnoredFields(responses),
  };
}

/** The published description (OpenAPI 3.1), made from the routes that serve the requests. */
export function openApiDocument(routes: readonly Route[], baseUrl: string): object {
  const paths: Record<string, Record<string, object>> = {};
  for (const route of routes) {
    const path = (paths[route.path] ??= {});
    path[route.method] = operationOf(route);
  }
  return {
    openapi: '3.1.0',
    info: { title: 'Berth', version: API_VERSION },
    servers: [{ url: baseUrl }],
    security: [{ apiKey: [] }, { bareApiKey: [] }],
    paths,
    components: {
      securitySchemes: {
        apiKey: { type: 'http', scheme: 'bearer', description: '`Authorization: Bearer key-…`' },
        bareApiKey: {
          type: 'apiKey',
          in: 'header',
          name: 'Authorization',
          description: 'The key alone, without a scheme: `Authorization: key-…`',
        },
      },
      headers: { IgnoredFields: IGNORED_FIELDS },
      schemas: { Failure },
    },
  };
}
