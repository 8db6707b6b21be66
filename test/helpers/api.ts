import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js';
import formats from 'ajv-formats';
import assert from 'node:assert';

interface Operation {
  operationId: string;
  responses: Record<string, { content?: Record<string, { schema: object }> }>;
}

interface OpenApi {
  paths: Record<string, Record<string, Operation>>;
  components: object;
}

export interface ApiReply<T = unknown> {
  readonly status: number;
  readonly headers: Headers;
  /** The parsed body, or its text when it is not JSON. */
  readonly body: T;
}

/** The reply to a call of an operation that the description has. */
export interface SeenReply {
  readonly operationId: string;
  readonly requestId: string;
  readonly status: number;
  readonly code: string | undefined;
}

export interface ApiBody {
  success: boolean;
  data: unknown;
  error: string;
  /** Missing where a proxy answers whose node broke off. */
  code: string;
  nextCursor?: string;
}

interface KnownPath {
  readonly pattern: RegExp;
  readonly operations: Record<string, Operation>;
}

/** How the errors of a proxy of docs/proxies.md begin, which no node has described. */
const PROXYS_OWN = [
  'no control node can be reached now',
  'the control node ended before it answered',
  'the control node did not answer in time',
];

const isProxysOwn = (body: unknown): boolean => {
  const error = (body as Partial<ApiBody> | undefined)?.error ?? '';
  return PROXYS_OWN.some((start) => error.startsWith(start));
};

/** Asserts that the OpenAPI document allows a reply. Each schema is compiled once. */
class ResponseChecker {
  static readonly #ofServers = new Map<string, Promise<ResponseChecker>>();
  readonly #paths: readonly KnownPath[];
  // Compiled validators are used a few times: neither optimizing it nor checking the document
  // against the schema of schemas pays. openapi.test.ts does check it.
  readonly #ajv = new Ajv2020({
    strict: false,
    discriminator: true,
    meta: false,
    validateSchema: false,
    code: { optimize: false },
  });
  readonly #validators = new Map<object, ValidateFunction>();

  private constructor(document: OpenApi) {
    this.#paths = Object.entries(document.paths).map(([path, operations]) => ({
      pattern: new RegExp(`^${path.replaceAll(/\{\w+\}/gu, '[^/]+')}$`, 'u'),
      operations,
    }));
    formats.default(this.#ajv);
    this.#ajv.addSchema(document, 'openapi');
  }

  /** The checker of a control node's document, shared by all its clients in this process. */
  static async of(baseUrl: string): Promise<ResponseChecker> {
    const known = this.#ofServers.get(baseUrl);
    if (known !== undefined) return known;
    const loading = fetch(`${baseUrl}/openapi.json`)
      .then((response) => response.json())
      .then((document) => new ResponseChecker(document as OpenApi));
    this.#ofServers.set(baseUrl, loading);
    loading.catch(() => this.#ofServers.delete(baseUrl));
    return loading;
  }

  /** @returns the operation's id, if it is one */
  check(
    method: string,
    url: string,
    status: number,
    type: string,
    body: unknown,
  ): string | undefined {
    const path = url.split('?')[0] ?? '';
    const verb = method.toLowerCase();
    const known = this.#paths.find(
      ({ pattern, operations }) => pattern.test(path) && verb in operations,
    );
    const operation = known?.operations[verb];
    if (operation === undefined) return undefined; // Not an endpoint: nothing is documented.
    const { operationId } = operation;
    if (isProxysOwn(body)) return operationId;
    const response = operation.responses[String(status)];
    assert(response !== undefined, `${method} ${path}: status ${status} is not documented`);
    if (response.content === undefined) return operationId; // Answered without a body.
    const content = response.content[type] ?? response.content['*/*'];
    assert(content !== undefined, `${method} ${path}: ${status} as ${type} is not documented`);
    if (type !== 'application/json') return operationId;
    const validate = this.#validator(content.schema);
    assert(
      validate(body),
      `${method} ${path}: ${status} does not match: ${this.#ajv.errorsText(validate.errors)}`,
    );
    return operationId;
  }

  #validator(schema: object): ValidateFunction {
    const known = this.#validators.get(schema);
    if (known !== undefined) return known;
    const text = JSON.stringify(schema).replaceAll('"#/', '"openapi#/');
    const validate = this.#ajv.compile(JSON.parse(text) as object);
    this.#validators.set(schema, validate);
    return validate;
  }
}

/** A caller of the public API; every reply is checked against /openapi.json. */
export class ApiClient {
  /** Told of each reply to any client of this process. */
  static onReply: ((reply: SeenReply) => void) | undefined;
  readonly baseUrl: string;
  readonly key: string;

  constructor(baseUrl: string, key: string) {
    this.baseUrl = baseUrl;
    this.key = key;
  }

  withKey(key: string): ApiClient {
    return new ApiClient(this.baseUrl, key);
  }

  /** @param body sent as JSON; a string is sent as it is */
  async call<T = ApiBody>(
    method: string,
    path: string,
    body?: unknown,
    headers: Record<string, string> = {},
    signal?: AbortSignal,
  ): Promise<ApiReply<T>> {
    const response = await fetch(`${this.baseUrl}${path}`, {
      method,
      headers: {
        ...(this.key === '' ? {} : { authorization: `Bearer ${this.key}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined
        ? {}
        : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
      ...(signal === undefined ? {} : { signal }),
    });
    const text = await response.text();
    const type = (response.headers.get('content-type') ?? '').split(';')[0] ?? '';
    const parsed: unknown = type === 'application/json' ? JSON.parse(text) : text;
    const checker = await ResponseChecker.of(this.baseUrl);
    const operationId = checker.check(method, path, response.status, type, parsed);
    if (operationId !== undefined) {
      const requestId = response.headers.get('x-request-id') ?? '';
      const { code } = (typeof parsed === 'object' ? parsed : {}) as Partial<ApiBody>;
      ApiClient.onReply?.({ operationId, requestId, status: response.status, code });
    }
    return { status: response.status, headers: response.headers, body: parsed as T };
  }

  /** Makes a call that must succeed. @returns its data */
  async data<T>(method: string, path: string, body?: unknown): Promise<T> {
    const reply = await this.call(method, path, body);
    assert(reply.body.success, `${method} ${path}: ${reply.status} ${JSON.stringify(reply.body)}`);
    return reply.body.data as T;
  }
}
