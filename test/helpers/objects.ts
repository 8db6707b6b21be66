import type { Stack } from './stack.ts';

export interface ObjectReply {
  readonly status: number;
  readonly headers: Headers;
  readonly body: Buffer;
  readonly text: string;
  /** The code of a failure's document. */
  readonly code: string | undefined;
}

interface ObjectRequest {
  readonly headers?: Record<string, string>;
  readonly body?: string | Buffer;
}

/** Each segment as clients escape it. */
export const escapeKey = (key: string): string => key.split('/').map(encodeURIComponent).join('/');

/** The text of an element, its entities decoded. */
export function textsOf(xml: string, name: string): string[] {
  const entities = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'" };
  return [...xml.matchAll(new RegExp(`<${name}>([^<]*)</${name}>`, 'gu'))].map(([, text = '']) =>
    text.replaceAll(
      /&(amp|lt|gt|quot|apos);/gu,
      (_, entity: keyof typeof entities) => entities[entity],
    ),
  );
}

/** A client of the object API with an API key, as the public clients send it: without scheme. */
export class ObjectClient {
  readonly baseUrl: string;
  readonly key: string;

  constructor(baseUrl: string, key: string) {
    this.baseUrl = baseUrl;
    this.key = key;
  }

  /** The answer with its body still to be read. */
  open(
    method: string,
    target: string,
    { headers = {}, body }: ObjectRequest = {},
  ): Promise<Response> {
    return fetch(`${this.baseUrl}${target}`, {
      method,
      headers: { authorization: this.key, ...headers },
      ...(body === undefined ? {} : { body }),
    });
  }

  /** @param target path and query, escaped */
  async call(method: string, target: string, request: ObjectRequest = {}): Promise<ObjectReply> {
    const response = await this.open(method, target, request);
    const bytes = Buffer.from(await response.arrayBuffer());
    const text = bytes.toString('utf8');
    const [code] = response.ok ? [] : textsOf(text, 'Code');
    return { status: response.status, headers: response.headers, body: bytes, text, code };
  }

  put(
    bucket: string,
    key: string,
    body: string | Buffer,
    headers: Record<string, string> = {},
  ): Promise<ObjectReply> {
    return this.call('PUT', `/${bucket}/${escapeKey(key)}`, { body, headers });
  }

  get(bucket: string, key: string, headers: Record<string, string> = {}): Promise<ObjectReply> {
    return this.call('GET', `/${bucket}/${escapeKey(key)}`, { headers });
  }
}

/** Where the first agent of a stack serves the object API. */
export const s3UrlOf = (stack: Stack): string => stack.environment['AGENT_PUBLIC_URL'] ?? '';
