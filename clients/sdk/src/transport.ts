/*
 * The parts of `fetch` and `WebSocket` that the client uses: no more, so that other implementations
 * are easily passed in their place.
 */

/** A request, as `fetch` takes it as its second argument. */
export interface FetchInit {
  readonly method: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: NonNullable<RequestInit['body']>;
  readonly signal: AbortSignal;
  /** Streams must say so (https://fetch.spec.whatwg.org/#enumdef-requestduplex). */
  readonly duplex?: 'half';
}

/** The content of an answer, which is read once. */
export interface AnswerBody {
  getReader(): {
    read(): Promise<
      | { readonly done: false; readonly value: Uint8Array }
      | { readonly done: true; readonly value?: unknown }
    >;
    cancel(): Promise<void>;
  };
  cancel(): Promise<void>;
}

/** The part of a `Response` that the client reads. */
export interface FetchAnswer {
  readonly ok: boolean;
  readonly status: number;
  readonly headers: { get(name: string): string | null };
  readonly body: AnswerBody | null;
  text(): Promise<string>;
}

/** Makes a request: the runtime's own `fetch` does. */
export type Fetch = (url: string, init: FetchInit) => Promise<FetchAnswer>;

/** The part of a WebSocket that sessions use. */
export interface Socket {
  binaryType: string;
  readonly readyState: number;
  readonly OPEN: number;
  send(data: string | Uint8Array<ArrayBuffer>): void;
  close(code?: number): void;
  addEventListener(type: 'open' | 'error' | 'close', listener: () => void): void;
  addEventListener(type: 'message', listener: (message: { readonly data: unknown }) => void): void;
}

/** Opens a WebSocket: the runtime's own class `WebSocket` does. */
export type SocketClass = new (url: string) => Socket;
