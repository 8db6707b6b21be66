import { Ajv2020 } from 'ajv/dist/2020.js';
import formats from 'ajv-formats';
import assert from 'node:assert';

interface Operation {
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

export interface ApiBody {
  success: boolean;
  data: unknown;
  error: string;
  code: string;
  nextCursor?: string;
}

/** Asserts that the OpenAPI document allows this reply. */
class ResponseChecker {
  readonly #document: OpenApi;
  readonly #ajv = new Ajv2020({ strict: false, discriminator: true });

  constructor(document: OpenApi) {
    this.#document = document;
    formats.default(this.#ajv);
    this.#ajv.addSchema(document, 'openapi');
  }

  check(method: string, url: string, status: number, type: string, body: unknown): void {
    const path = url.split('?')[0] ?? '';
    const pattern = Object.keys(this.#document.paths).find((candidate) =>
      new RegExp(`^${candidate.replaceAll(/\{\w+\}/gu, '[^/]+')}$`, 'u').test(path),
    );
    const operation = this.#document.paths[pattern ?? '']?.[method.toLowerCase()];
    if (operation === undefined) return; // Not an endpoint, so nothing is documented.
    const response = operation.responses[String(status)];
    assert(response !== undefined, `${method} ${path}: status ${status} is not documented`);
    if (response.content === undefined) return; // Answered without a body.
    const content = response.content[type] ?? response.content['*/*'];
    assert(content !== undefined, `${method} ${path}: ${status} as ${type} is not documented`);
    if (type !== 'application/json') return;
    const schema = JSON.stringify(content.schema).replaceAll('"#/', '"openapi#/');
    const validate = this.#ajv.compile(JSON.parse(schema) as object);
    assert(
      validate(body),
      `${method} ${path}: ${status} does not match: ${this.#ajv.errorsText(validate.errors)}`,
    );
  }
}

/** A caller of the public API; every reply is checked against /openapi.json. */
export class ApiClient {
  readonly baseUrl: string;
  readonly key: string;
  #checker: ResponseChecker | undefined;

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
    const checker = await this.#responseChecker();
    checker.check(method, path, response.status, type, parsed);
    return { status: response.status, headers: response.headers, body: parsed as T };
  }

  /** Makes a call that must succeed. @returns its data */
  async data<T>(method: string, path: string, body?: unknown): Promise<T> {
    const reply = await this.call(method, path, body);
    assert(reply.body.success, `${method} ${path}: ${reply.status} ${JSON.stringify(reply.body)}`);
    return reply.body.data as T;
  }

  async #responseChecker(): Promise<ResponseChecker> {
    if (this.#checker === undefined) {
      const response = await fetch(`${this.baseUrl}/openapi.json`);
      this.#checker = new ResponseChecker((await response.json()) as OpenApi);
    }
    return this.#checker;
  }
}
