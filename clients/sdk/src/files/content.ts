/* Content of files on its way up: whatever callers have, as what `fetch` takes. */

type Piece = string | Uint8Array;
/** The body type of `fetch`; by this name in every runtime. */
type Body = NonNullable<RequestInit['body']>;

/** Content whose every reading brings the same, so a failed upload of it is repeated. */
export type WholeContent = string | Uint8Array | ArrayBuffer | Blob;

/** Content that comes piece by piece and can be read once. */
export type StreamedContent = ReadableStream<Uint8Array> | AsyncIterable<Piece>;

/**
 * Content of a file to write; text as UTF-8. A function is called for each attempt, so that also
 * what is streamed can be sent again.
 */
export type FileContent =
  | WholeContent
  | StreamedContent
  | (() => WholeContent | StreamedContent | Promise<WholeContent | StreamedContent>);

const encoder = new TextEncoder();
const bytesOf = (piece: Piece): Uint8Array =>
  typeof piece === 'string' ? encoder.encode(piece) : piece;

const isWhole = (content: WholeContent | StreamedContent): content is WholeContent =>
  typeof content === 'string' ||
  content instanceof ArrayBuffer ||
  ArrayBuffer.isView(content) ||
  content instanceof Blob;

/**
 * The pieces of a stream, also where streams cannot be looped over. Left early, it is cancelled.
 */
async function* piecesOf(stream: ReadableStream<Uint8Array>): AsyncGenerator<Piece> {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    await reader.cancel();
  }
}

/** @internal One upload, as its content sees it. */
export interface Upload {
  /** Ends it. */
  readonly signal: AbortSignal;
  /** Told what the source throws, which `fetch` would hide. */
  readonly failed: (error: Error) => void;
}

function toStream(
  content: StreamedContent,
  { signal, failed }: Upload,
): ReadableStream<Uint8Array> {
  const source: AsyncIterable<Piece> =
    content instanceof ReadableStream ? piecesOf(content) : content;
  const pieces = source[Symbol.asyncIterator]();
  const pull = async (controller: ReadableStreamDefaultController<Uint8Array>): Promise<void> => {
    try {
      signal.throwIfAborted(); // Nobody else would end what is only collected.
      const next = await pieces.next();
      if (next.done === true) controller.close();
      else controller.enqueue(bytesOf(next.value));
    } catch (error) {
      failed(error as Error);
      controller.error(error);
    }
  };
  const cancel = async (): Promise<void> => {
    await pieces.return?.();
  };
  return new ReadableStream({ pull, cancel }, { highWaterMark: 0 });
}

/** Browsers send streams over HTTP/2 only, and nobody tells a page which version it would be. */
const isInBrowser = (): boolean => 'document' in globalThis || 'WorkerGlobalScope' in globalThis;

/** Calls the function that has the content. Repeating the upload would not cure its failure. */
async function open(
  content: Extract<FileContent, () => unknown>,
  { failed }: Upload,
): Promise<WholeContent | StreamedContent> {
  try {
    return await content();
  } catch (error) {
    failed(error as Error);
    throw error;
  }
}

/** @internal The body of an upload, for each attempt anew. */
export async function toBody(content: FileContent, upload: Upload): Promise<Body> {
  const given = typeof content === 'function' ? await open(content, upload) : content;
  if (typeof given === 'string') return encoder.encode(given); // Or `fetch` would say text/plain.
  if (isWhole(given)) return given as Body;
  const stream = toStream(given, upload);
  // A browser keeps a large blob on its disk.
  return isInBrowser() ? new Response(stream).blob() : stream;
}

/** @internal Whether it can be sent a second time. */
export const isRepeatable = (content: FileContent): boolean =>
  typeof content === 'function' || isWhole(content);
