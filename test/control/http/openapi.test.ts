import { Ajv2020, type AnySchemaObject } from 'ajv/dist/2020.js';
import formats from 'ajv-formats';
import anyTest, { type TestFn } from 'ava';
import { statusOf } from '../../../control/http/error-status.ts';
import { routes } from '../../../control/routes.ts';
import type { ErrorCode } from '../../../shared/errors.ts';
import type { ApiClient } from '../../helpers/api.ts';
import { Stack } from '../../helpers/stack.ts';

interface Parameter {
  name: string;
  in: string;
  required: boolean;
  deprecated?: boolean;
  schema: AnySchemaObject;
}

interface Operation {
  operationId: string;
  description: string;
  parameters: Parameter[];
  security?: object[];
  requestBody?: { required: boolean; content: Record<string, { schema: AnySchemaObject }> };
  responses: Record<
    string,
    { content: Record<string, { schema: AnySchemaObject }>; headers?: Record<string, object> }
  >;
}

interface OpenApiDocument {
  openapi: string;
  info: { version: string };
  servers: { url: string }[];
  paths: Record<string, Record<string, Operation>>;
  security: object[];
  components: { schemas: Record<string, object>; securitySchemes: Record<string, object> };
}

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient; document: OpenApiDocument }>;

test.before(async (t) => {
  const stack = await Stack.start();
  t.context.stack = stack;
  t.context.api = await stack.newClient();
  const response = await fetch(`${stack.baseUrl}/openapi.json`);
  t.is(response.headers.get('content-type'), 'application/json; charset=utf-8');
  t.context.document = (await response.json()) as OpenApiDocument;
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** Every endpoint of the interface, built or not (docs/api.md). */
const built = `
GET /api/disks
POST /api/disks
GET /api/disks/{id}
DELETE /api/disks/{id}
POST /api/disks/{id}/users
POST /api/disks/{id}/mounts/{mountId}/credentials
DELETE /api/disks/{id}/users/{userType}
GET /api/disks/{id}/allowed-ips
PUT /api/disks/{id}/allowed-ips
GET /api/disks/{id}/delegations
POST /api/disks/{id}/revoke-delegation
POST /api/disks/{id}/share
GET /api/shared/{token}
POST /api/disks/{id}/exec
POST /api/exec
POST /api/disks/{id}/grep
GET /api/tokens
POST /api/tokens
DELETE /api/tokens/{id}
GET /api/sandboxes
POST /api/sandboxes
GET /api/sandboxes/{sid}
DELETE /api/sandboxes/{sid}
POST /api/sandboxes/{sid}/start
POST /api/sandboxes/{sid}/stop
POST /api/sandboxes/{sid}/pause
POST /api/sandboxes/{sid}/resume
POST /api/sandboxes/{sid}/fork
POST /api/sandboxes/{sid}/timeout
GET /api/sandboxes/{sid}/execs
POST /api/sandboxes/{sid}/execs
GET /api/sandboxes/{sid}/execs/{eid}
POST /api/sandboxes/{sid}/execs/{eid}/cancel
POST /api/sandboxes/{sid}/connections
GET /api/sandboxes/{sid}/network
PUT /api/sandboxes/{sid}/network
GET /api/sandboxes/{sid}/ports
PUT /api/sandboxes/{sid}/ports/{port}
DELETE /api/sandboxes/{sid}/ports/{port}
GET /api/sandboxes/{sid}/port-tokens
POST /api/sandboxes/{sid}/port-tokens
GET /api/sandboxes/{sid}/port-tokens/{tokenId}
DELETE /api/sandboxes/{sid}/port-tokens/{tokenId}
POST /api/images
GET /api/images/{image_id}
`;
const endpointsOf = (text: string): [method: string, path: string][] =>
  text
    .trim()
    .split('\n')
    .map((line) => line.split(' ') as [string, string]);

const operations = (document: OpenApiDocument): [string, string, Operation][] =>
  Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]): [string, string, Operation] => [
      method.toUpperCase(),
      path,
      operation,
    ]),
  );

test('the description has version 1.0.0 and names this server', (t) => {
  const { document, stack } = t.context;
  t.is(document.openapi, '3.1.0');
  t.is(document.info.version, '1.0.0');
  t.deepEqual(document.servers, [{ url: stack.baseUrl }]);
});

test('every endpoint of the specification is described', (t) => {
  const { document } = t.context;
  for (const [method, path] of endpointsOf(built)) {
    t.truthy(document.paths[path]?.[method.toLowerCase()], `${method} ${path}`);
  }
});

test('every route is described and nothing else', (t) => {
  const described = operations(t.context.document).map(([method, path]) => `${method} ${path}`);
  const served = routes.map(({ method, path }) => `${method.toUpperCase()} ${path}`);
  t.deepEqual(described.toSorted(), served.toSorted());
});

// The parts of https://spec.openapis.org/oas/3.1/schema that a description like ours can have.
const anyText = { type: 'string', minLength: 1 };
const content = {
  type: 'object',
  minProperties: 1,
  additionalProperties: {
    type: 'object',
    required: ['schema'],
    additionalProperties: false,
    properties: { schema: { $ref: 'https://json-schema.org/draft/2020-12/schema' } },
  },
};
const operationSchema = {
  type: 'object',
  required: ['responses'],
  additionalProperties: false,
  properties: {
    operationId: anyText,
    summary: anyText,
    description: anyText,
    tags: { type: 'array', items: anyText },
    security: { type: 'array', items: { type: 'object' } },
    parameters: {
      type: 'array',
      items: {
        type: 'object',
        required: ['name', 'in', 'schema'],
        additionalProperties: false,
        properties: {
          name: anyText,
          in: { enum: ['path', 'query', 'header', 'cookie'] },
          required: { type: 'boolean' },
          deprecated: { type: 'boolean' },
          description: anyText,
          schema: { $ref: 'https://json-schema.org/draft/2020-12/schema' },
        },
        if: { properties: { in: { const: 'path' } } },
        // oxlint-disable-next-line unicorn/no-thenable -- a keyword of JSON Schema
        then: { properties: { required: { const: true } }, required: ['required'] },
      },
    },
    requestBody: {
      type: 'object',
      required: ['content'],
      additionalProperties: false,
      properties: { required: { type: 'boolean' }, content },
    },
    responses: {
      type: 'object',
      minProperties: 1,
      additionalProperties: false,
      patternProperties: {
        '^[1-5][0-9]{2}$': {
          type: 'object',
          required: ['description'],
          additionalProperties: false,
          properties: {
            description: anyText,
            content,
            headers: { type: 'object', additionalProperties: { required: ['$ref'] } },
          },
        },
      },
    },
  },
};
const documentSchema = {
  type: 'object',
  required: ['openapi', 'info', 'paths'],
  additionalProperties: false,
  properties: {
    openapi: { pattern: '^3\\.1\\.\\d+$' },
    info: {
      type: 'object',
      required: ['title', 'version'],
      properties: { title: anyText, version: anyText },
    },
    servers: { type: 'array', items: { type: 'object', required: ['url'] } },
    tags: { type: 'array', items: { type: 'object', required: ['name', 'description'] } },
    security: { type: 'array', items: { type: 'object' } },
    paths: {
      type: 'object',
      additionalProperties: false,
      patternProperties: {
        '^/': {
          type: 'object',
          additionalProperties: false,
          patternProperties: { '^(get|put|post|delete)$': operationSchema },
        },
      },
    },
    components: {
      type: 'object',
      additionalProperties: false,
      properties: {
        securitySchemes: { type: 'object' },
        headers: { type: 'object', additionalProperties: { required: ['schema'] } },
        schemas: {
          type: 'object',
          additionalProperties: { $ref: 'https://json-schema.org/draft/2020-12/schema' },
        },
      },
    },
  },
};

test('the description has the form of OpenAPI 3.1, its schemas that of JSON Schema', (t) => {
  const ajv = new Ajv2020({ strict: false, allErrors: true });
  const validate = ajv.compile(documentSchema);
  t.true(validate(t.context.document), ajv.errorsText(validate.errors));
});

test('references resolve, operation ids are unique, path parameters are described', (t) => {
  const { document } = t.context;
  const references = JSON.stringify(document).matchAll(/"\$ref":"#\/([^"]+)"/gu);
  for (const [, pointer = ''] of references) {
    let target: unknown = document;
    for (const part of pointer.split('/')) target = Reflect.get(Object(target), part);
    t.not(target, undefined, pointer);
  }
  const all = operations(document);
  t.is(new Set(all.map(([, , { operationId }]) => operationId)).size, all.length);
  for (const [method, path, { parameters }] of all) {
    const inPath = parameters.filter((parameter) => parameter.in === 'path');
    const names = path.matchAll(/\{(\w+)\}/gu);
    t.deepEqual(
      inPath.map(({ name }) => name).toSorted(),
      Array.from(names, ([, name]) => name ?? '').toSorted(),
      `${method} ${path}`,
    );
  }
});

test('every error is described as the failure envelope with its codes, the 401 of three as plain text', (t) => {
  const plain: string[] = [];
  const detailed: string[] = [];
  for (const [method, path, { responses }] of operations(t.context.document)) {
    for (const [status, { content: bodies }] of Object.entries(responses)) {
      if (Number(status) < 400) continue;
      const name = `${status} ${method} ${path}`;
      const schema = bodies['application/json']?.schema;
      if (schema === undefined) {
        plain.push(name);
        continue;
      }
      const [envelope, { properties }] = schema['allOf'] as [AnySchemaObject, AnySchemaObject];
      const codes = (properties as { code: { enum: ErrorCode[] } }).code.enum;
      t.true(codes.length > 0, name);
      t.deepEqual(
        codes.filter((code) => statusOf[code] !== Number(status)),
        [],
        name,
      );
      if (envelope['$ref'] !== '#/components/schemas/Failure') detailed.push(name);
    }
  }
  t.deepEqual(plain.toSorted(), [
    '401 GET /api/images/{image_id}',
    '401 POST /api/images',
    '401 POST /api/sandboxes',
  ]);
  t.deepEqual(detailed, ['409 DELETE /api/sandboxes/{sid}', '409 DELETE /api/snapshots/{id}']);
});

test('an error with more fields is described as the failure envelope with those fields', (t) => {
  const { Failure: plain, SandboxDeletionFailure: detailed } = t.context.document.components
    .schemas as Record<string, AnySchemaObject>;
  t.deepEqual(detailed?.['required'], plain?.['required']);
  t.deepEqual(Object.keys(detailed?.['properties'] as object), [
    ...Object.keys(plain?.['properties'] as object),
    'child_disk_count',
    'child_disk_ids',
  ]);
});

interface Described {
  readonly description?: string;
  readonly examples?: unknown[];
  readonly [keyword: string]: unknown;
}

/** Paths of a schema's fields that have no description. */
function unexplained(schema: Described, path: string): string[] {
  const { properties = {}, items, additionalProperties } = schema;
  const branches = ['allOf', 'oneOf', 'anyOf'].flatMap((key) => (schema[key] as Described[]) ?? []);
  const parts = [...branches, items, additionalProperties].filter((part) => part instanceof Object);
  const fields = Object.entries(properties as Record<string, Described>);
  return [
    ...fields.flatMap(([name, field]) => [
      ...explain(field, `${path}.${name}`),
      ...unexplained(field, `${path}.${name}`),
    ]),
    ...parts.flatMap((part) => unexplained(part as Described, path)),
  ];
}

/** The envelope has its `data` described by what that is. */
function explain(field: Described, path: string): string[] {
  const hasValue = ['string', 'integer', 'number', 'boolean'].includes(String(field['type']));
  const isNamed = '$ref' in field || 'allOf' in field || path.endsWith('.data');
  return [
    ...(field.description === undefined && !isNamed ? [`${path}: no description`] : []),
    ...(hasValue && field.examples === undefined && !('const' in field)
      ? [`${path}: no example`]
      : []),
  ];
}

test('every operation, parameter and field has a description, and every value an example', (t) => {
  const { document } = t.context;
  const missing = Object.entries(document.components.schemas).flatMap(([name, schema]) =>
    unexplained(schema as Described, name),
  );
  for (const [method, path, operation] of operations(document)) {
    const { description, parameters, requestBody, responses } = operation;
    t.regex(description, /^[A-Z].*\.$/su, `${method} ${path}`);
    for (const { name, schema, ...parameter } of parameters) {
      missing.push(...explain({ ...schema, ...parameter }, `${method} ${path} ${name}`));
    }
    for (const { content: bodies = {} } of [requestBody ?? {}, ...Object.values(responses)]) {
      for (const { schema } of Object.values(bodies)) {
        missing.push(...unexplained(schema, `${method} ${path}`));
      }
    }
  }
  t.deepEqual(missing, []);
});

test('examples are values that the schemas allow', (t) => {
  const { document } = t.context;
  const ajv = new Ajv2020({ strict: false, discriminator: true });
  formats.default(ajv);
  ajv.addSchema(document, 'openapi');
  const wrong: string[] = [];
  const check = (value: unknown, path: string): void => {
    if (!(value instanceof Object)) return;
    const { examples } = value as Described;
    if (Array.isArray(examples)) {
      const validate = ajv.compile(resolvable(value));
      for (const example of examples) {
        if (!validate(example)) wrong.push(`${path}: ${ajv.errorsText(validate.errors)}`);
      }
    }
    for (const [key, part] of Object.entries(value)) {
      if (key !== 'examples') check(part, `${path}/${key}`);
    }
  };
  check(document, '');
  t.deepEqual(wrong, []);
});

/** A part of the document with references that lead into the whole of it. */
const resolvable = (schema: object): AnySchemaObject =>
  JSON.parse(JSON.stringify(schema).replaceAll('"#/', '"openapi#/')) as AnySchemaObject;

test('everything but the share download and the joining of hosts requires the key', (t) => {
  const free = operations(t.context.document).filter(
    ([, , { security }]) => security?.length === 0,
  );
  t.deepEqual(
    free.map(([method, path]) => `${method} ${path}`),
    ['GET /api/shared/{token}', 'POST /api/hosts/join'],
  );
  for (const [method, path, { responses }] of operations(t.context.document)) {
    const isFree = path === '/api/shared/{token}' || path === '/api/hosts/join';
    t.is(responses['401'] === undefined, isFree, `${method} ${path}`);
  }
});

test('both forms of the key are described', (t) => {
  const { security, components } = t.context.document;
  t.deepEqual(security, [{ apiKey: [] }, { bareApiKey: [] }]);
  t.like(components.securitySchemes, {
    apiKey: { type: 'http', scheme: 'bearer' },
    bareApiKey: { type: 'apiKey', in: 'header', name: 'Authorization' },
  });
});

test('every answer but that to a wrong key is described with the header X-Ignored-Fields', (t) => {
  for (const [method, path, { responses }] of operations(t.context.document)) {
    for (const [status, { headers }] of Object.entries(responses)) {
      t.is('X-Ignored-Fields' in (headers ?? {}), status !== '401', `${status} ${method} ${path}`);
    }
  }
});

test('deprecated inputs are marked', (t) => {
  const { paths, components } = t.context.document;
  const bodyOf = (path: string): AnySchemaObject => {
    const schema = paths[path]?.['post']?.requestBody?.content['application/json']?.schema ?? {};
    const name = String(schema['$ref'] ?? '').replace('#/components/schemas/', '');
    return components.schemas[name] ?? schema;
  };
  const { authMethods, name } = bodyOf('/api/disks')['properties'] as Record<string, object>;
  t.like(authMethods, { deprecated: true });
  t.is(Reflect.get(name ?? {}, 'deprecated'), undefined);
  const [tokenUser] = bodyOf('/api/disks/{id}/users')['oneOf'] as AnySchemaObject[];
  t.like(tokenUser?.['properties'], {
    principal: { deprecated: true },
    tokenSuffix: { deprecated: true },
  });
  const removal = paths['/api/disks/{id}/users/{userType}']?.['delete'];
  const query = removal?.parameters.filter((parameter) => parameter.in === 'query');
  t.deepEqual(
    query?.map((parameter) => [parameter.name, parameter.deprecated === true]),
    [
      ['identifier', false],
      ['principal', true],
    ],
  );
});

test('lists describe their parameters', (t) => {
  const names = (path: string): string[] | undefined =>
    t.context.document.paths[path]?.['get']?.parameters.map(({ name }) => name).toSorted();
  t.deepEqual(names('/api/disks'), ['cursor', 'limit', 'name']);
  t.deepEqual(names('/api/tokens'), ['cursor', 'limit']);
  t.deepEqual(names('/api/sandboxes'), ['filesystem', 'name']);
});

test('bodies are described as they are validated', (t) => {
  const ajv = new Ajv2020({ strict: false, discriminator: true });
  formats.default(ajv);
  ajv.addSchema(t.context.document, 'openapi');
  const check = (path: string, body: unknown): boolean => {
    const schema = t.context.document.paths[path]?.['post']?.requestBody?.content;
    const validate = ajv.compile(resolvable(schema?.['application/json']?.schema ?? {}));
    return validate(body) === true;
  };
  t.true(check('/api/disks', { name: 'ok', allowedIps: ['10.0.0.1'] }));
  t.false(check('/api/disks', { name: 'not ok' }));
  t.true(check('/api/disks/{id}/users', { type: 'awssts', principal: 'p' }));
  t.false(check('/api/disks/{id}/users', { type: 'token' }));
  t.false(check('/api/disks/{id}/exec', { command: '' }));
  t.true(check('/api/sandboxes', {}));
  t.true(check('/api/sandboxes', { name: 'box', base_image: 'ubuntu:26.04', env: { A: 'b' } }));
  t.false(check('/api/sandboxes', { name: 'Box' }));
  t.false(check('/api/sandboxes', { env: { A: 1 } }));
  t.false(check('/api/sandboxes/{sid}/execs', { command: '' }));
  t.true(check('/api/sandboxes/{sid}/fork', { name: 'copy', checkpoint: 'c' }));
  t.false(check('/api/sandboxes/{sid}/fork', { name: 'Copy' }));
  t.true(check('/api/sandboxes/{sid}/timeout', { timeout: 60, idle_ttl_seconds: 0 }));
  t.false(check('/api/sandboxes/{sid}/timeout', { timeout: 59 }));
});
