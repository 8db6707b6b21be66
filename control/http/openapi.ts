import type { TSchema } from 'typebox';
import { HTTP_LIMITS } from './limits.ts';
import type { ErrorCode } from '../../shared/errors.ts';
import { Failure } from '../../shared/schemas/common.ts';
import { VISIBLE_ASCII } from '../../shared/schemas/patterns.ts';
import { OpenApiComponents } from './openapi-components.ts';
import { codesByStatus } from './route-errors.ts';
import { type Route, tags } from './route.ts';
import { HOUR_MS } from '../../shared/units.ts';

/** See docs/api.md, Compatibility. */
export const API_VERSION = '1.0.0';

const ABOUT =
  'Shared disks, commands that run on them, and persistent sandboxes. Answers are JSON envelopes: ' +
  '`success` with `data`, or with `error` and `code`. See docs/api.md.';

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

const HTTP_DATE = 'Sun, 01 Mar 2026 12:00:00 GMT';

const IDEMPOTENCY_KEY = {
  name: 'Idempotency-Key',
  in: 'header',
  required: false,
  description:
    'Makes the request happen at most once: repeated within ' +
    `${HTTP_LIMITS.idempotencyTtlMs / HOUR_MS} hours with the same key and body, ` +
    'it gets the first answer again (Idempotency-Replayed: true).',
  schema: {
    type: 'string',
    minLength: 1,
    maxLength: HTTP_LIMITS.idempotencyKeyLengthMax,
    pattern: VISIBLE_ASCII,
    examples: ['6b9f1c52-build-17'],
  },
};

const IGNORED_FIELDS = {
  description:
    'Names the query parameters and the fields of the request body that were ignored because the ' +
    'endpoint has no such parameter or field, as in `?size, colour, mounts[0].foo`. Absent when ' +
    'there are none.',
  schema: { type: 'string', examples: ['colour'] },
};

const json = (schema: object) => ({ 'application/json': { schema } });

function parametersOf(
  components: OpenApiComponents,
  schema: TSchema | undefined,
  place: 'path' | 'query',
): object[] {
  const { properties = {}, required = [] } = (schema ?? {}) as {
    properties?: Record<string, unknown>;
    required?: string[];
  };
  return Object.entries(properties).map(([name, property]) => {
    const { deprecated, description, ...rest } = components.add(property as object);
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

const FILE_HEADERS = Object.entries({
  Range: ['Asks for parts of the file.', 'bytes=0-1023'],
  'If-Range': ['Parts only while the file has this tag or date; else all of it.', '"5f3a9c"'],
  'If-Match': ['Only while the file has one of these tags.', '"5f3a9c"'],
  'If-None-Match': ['Only when the file has none of these tags; else 304.', '"5f3a9c"'],
  'If-Modified-Since': ['Only when it has changed since; else 304.', HTTP_DATE],
  'If-Unmodified-Since': ['Only while it has not changed since.', HTTP_DATE],
}).map(([name, [description, example]]) => ({
  name,
  in: 'header',
  required: false,
  description,
  schema: { type: 'string', examples: [example] },
}));

const UPLOAD_HEADERS = FILE_HEADERS.filter(({ name }) =>
  ['If-Match', 'If-None-Match'].includes(name),
).map((header) =>
  header.name === 'If-Match'
    ? header
    : { ...header, description: 'Only when there is no such file (`*`), or none with these tags.' },
);

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

/** The body of an error, with the codes that it can have. */
function failureOf(
  components: OpenApiComponents,
  { failures }: Route,
  status: number,
  codes: readonly ErrorCode[],
): object {
  return {
    allOf: [
      components.add(failures?.[status] ?? Failure),
      { type: 'object', properties: { code: { description: 'One of these.', enum: codes } } },
    ],
  };
}

/** Events of one line of JSON each, as browsers read them (HTML, section 9.2). */
const eventsResponse = (status: number): [string, object] => [
  String(status),
  {
    description: STATUS_TEXT[status] ?? 'Success',
    content: {
      'text/event-stream': {
        schema: { type: 'string', examples: ['event: ready\ndata: {}\n\n'] },
      },
    },
  },
];

function responsesOf(components: OpenApiComponents, route: Route): Record<string, object> {
  return Object.fromEntries([
    ...Object.entries(route.replies).map(([status, schema]) => [
      status,
      {
        description: STATUS_TEXT[Number(status)] ?? 'Success',
        content: json(components.add(schema)),
      },
    ]),
    ...(route.empty ?? []).map((status) => [status, { description: STATUS_TEXT[status] }]),
    ...(route.files ?? []).map(fileResponse),
    ...(route.events ?? []).map(eventsResponse),
    ...[...codesByStatus(route)].map(([status, codes]) => [
      String(status),
      {
        description: STATUS_TEXT[status] ?? 'Error',
        content:
          status === 401 && route.plainUnauthorized === true
            ? { 'text/plain': { schema: { type: 'string', examples: ['unauthorized'] } } }
            : json(failureOf(components, route, status, codes)),
      },
    ]),
  ]) as Record<string, object>;
}

/** Answers that come after the request was read say what of it was ignored. */
function withIgnoredFields(responses: Record<string, object>): Record<string, object> {
  const headers = { 'X-Ignored-Fields': { $ref: '#/components/headers/IgnoredFields' } };
  return Object.fromEntries(
    Object.entries(responses).map(([status, response]) => [
      status,
      status === '401' ? response : { ...response, headers },
    ]),
  );
}

/** The scope stands where OpenAPI 3.1 has the roles that an operation needs. */
const securityOf = ({ scope }: Route): object[] =>
  scope === 'public' ? [] : [{ apiKey: [scope] }, { bareApiKey: [scope] }];

function operationOf(components: OpenApiComponents, route: Route): object {
  const responses = responsesOf(components, route);
  return {
    operationId: route.operationId,
    summary: route.summary,
    description: route.description,
    tags: [route.tag],
    security: securityOf(route),
    parameters: [
      ...parametersOf(components, route.params, 'path'),
      ...parametersOf(components, route.query, 'query'),
      ...(route.files === undefined ? [] : FILE_HEADERS),
      ...(route.upload === true ? UPLOAD_HEADERS : []),
      ...(route.idempotent === true ? [IDEMPOTENCY_KEY] : []),
    ],
    ...(route.upload === true
      ? { requestBody: { required: false, content: { '*/*': { schema: FILE_SCHEMA } } } }
      : {}),
    ...(route.body === undefined
      ? {}
      : {
          requestBody: {
            required: route.bodyOptional !== true,
            content: json(components.add(route.body)),
          },
        }),
    responses: withIgnoredFields(responses),
  };
}

/** The published description (OpenAPI 3.1), made from the routes that serve the requests. */
export function openApiDocument(routes: readonly Route[], baseUrl: string): object {
  const components = new OpenApiComponents();
  const paths: Record<string, Record<string, object>> = {};
  for (const route of routes) {
    const path = (paths[route.path] ??= {});
    path[route.method] = operationOf(components, route);
  }
  return {
    openapi: '3.1.0',
    info: {
      title: 'Berth',
      version: API_VERSION,
      description: ABOUT,
      license: { name: 'All rights reserved', identifier: 'LicenseRef-Proprietary' },
    },
    servers: [{ url: baseUrl }],
    security: [{ apiKey: [] }, { bareApiKey: [] }],
    tags: Object.entries(tags).map(([name, description]) => ({ name, description })),
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
      schemas: components.schemas,
    },
  };
}
