import { PAGE_HEADERS, noteStatus, pageFetch } from './berth.ts';

/*
 * The files of a disk, by its object API on control's own address (docs/object-api.md).
 */

export interface FileEntry {
  /** Within its folder; of a folder without the slash. */
  readonly name: string;
  readonly key: string;
  readonly isFolder: boolean;
  readonly size: number;
  readonly modified: string;
}

export interface Listing {
  readonly entries: readonly FileEntry[];
  readonly next: string | undefined;
}

/** A refusal of the object API. */
export class ObjectError extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message: string) {
    super(message);
    this.name = 'ObjectError';
    this.status = status;
    this.code = code;
  }
}

const LIST_MAX = '1000';

const escapeKey = (key: string): string => key.split('/').map(encodeURIComponent).join('/');

/** The path of an object, or of the disk itself. */
export function objectPath(
  disk: string,
  key: string,
  parameters: Readonly<Record<string, string>> = {},
): string {
  const search = new URLSearchParams(parameters).toString();
  const at = key === '' ? `/${disk}` : `/${disk}/${escapeKey(key)}`;
  return search === '' ? at : `${at}?${search}`;
}

const parseXml = (text: string): Document => new DOMParser().parseFromString(text, 'text/xml');

/** The text of the first such element. */
export const textOf = (parent: Document | Element, name: string): string =>
  parent.getElementsByTagName(name)[0]?.textContent ?? '';

function toObjectError(status: number, body: string): ObjectError {
  const answer = parseXml(body);
  const code = textOf(answer, 'Code') || `HTTP ${status}`;
  return new ObjectError(status, code, textOf(answer, 'Message') || code);
}

/**
 * The ETag as Berth sent it. Berth's are strong; a proxy that compresses makes them weak, and
 * `If-Match` takes no weak ones (https://www.rfc-editor.org/rfc/rfc9110#section-13.1.1).
 */
const strongTag = (etag: string | null): string => etag?.replace(/^W\//u, '') ?? '';

async function call(method: string, url: string, init: RequestInit = {}): Promise<Response> {
  const request = new Request(url, { method, cache: 'no-store', ...init });
  const response = await pageFetch(request);
  if (!response.ok) throw toObjectError(response.status, await response.text());
  return response;
}

export async function callXml(method: string, url: string, body?: string): Promise<Document> {
  const response = await call(method, url, body === undefined ? {} : { body });
  return parseXml(await response.text());
}

/** Lists a page of a folder: folders and files in the order of their keys. */
export async function listFolder(
  disk: string,
  folder: string,
  { after, signal }: { readonly after?: string | undefined; readonly signal?: AbortSignal } = {},
): Promise<Listing> {
  const url = objectPath(disk, '', {
    'list-type': '2',
    delimiter: '/',
    prefix: folder,
    'max-keys': LIST_MAX,
    ...(after === undefined ? {} : { 'continuation-token': after }),
  });
  const response = await call('GET', url, signal === undefined ? {} : { signal });
  const answer = parseXml(await response.text());
  const folders = [...answer.getElementsByTagName('CommonPrefixes')].map((each): FileEntry => {
    const key = textOf(each, 'Prefix');
    const name = key.slice(folder.length).replace(/\/$/u, '');
    return { name, key, isFolder: true, size: 0, modified: '' };
  });
  const files = [...answer.getElementsByTagName('Contents')].map((each): FileEntry => {
    const key = textOf(each, 'Key');
    const modified = textOf(each, 'LastModified');
    const size = Number(textOf(each, 'Size'));
    return { name: key.slice(folder.length), key, isFolder: false, size, modified };
  });
  const next = textOf(answer, 'NextContinuationToken');
  return {
    entries: [...folders, ...files.filter(({ name }) => name !== '')],
    next: next === '' ? undefined : next,
  };
}

export interface ObjectHead {
  readonly size: number;
  readonly type: string;
  readonly etag: string;
}

export async function headObject(disk: string, key: string): Promise<ObjectHead> {
  const { headers } = await call('HEAD', objectPath(disk, key));
  return {
    size: Number(headers.get('content-length')),
    type: headers.get('content-type') ?? '',
    etag: strongTag(headers.get('etag')),
  };
}

export async function readObject(
  disk: string,
  key: string,
): Promise<{ readonly body: Blob; readonly etag: string }> {
  const response = await call('GET', objectPath(disk, key));
  return { body: await response.blob(), etag: strongTag(response.headers.get('etag')) };
}

/**
 * Writes an object.
 * @param ifMatch only over this version; `undefined`: only where there is none; `any`: in any case
 * @returns its new ETag
 * @throws ObjectError with status 412 when that does not hold
 */
export async function writeObject(
  disk: string,
  key: string,
  body: string,
  ifMatch: string | undefined,
): Promise<string> {
  const condition: Record<string, string> =
    ifMatch === 'any'
      ? {}
      : ifMatch === undefined
        ? { 'if-none-match': '*' }
        : { 'if-match': ifMatch };
  const response = await call('PUT', objectPath(disk, key), { body, headers: condition });
  return strongTag(response.headers.get('etag'));
}

export async function deleteObject(disk: string, key: string): Promise<void> {
  await call('DELETE', objectPath(disk, key));
}

export async function createFolder(disk: string, key: string): Promise<void> {
  await call('PUT', objectPath(disk, `${key.replace(/\/$/u, '')}/`));
}

/** Sends a body with progress, which fetch does not report. @returns the answer's ETag */
export function send(
  url: string,
  body: Blob,
  { signal, onProgress }: { signal: AbortSignal; onProgress: (bytes: number) => void },
): Promise<string> {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted(); // A request that was not sent says nothing when it is aborted.
    const request = new XMLHttpRequest();
    const abort = (): void => request.abort();
    const refuse = (error: Error): void => {
      signal.removeEventListener('abort', abort);
      reject(error);
    };
    request.open('PUT', url);
    for (const [name, value] of Object.entries(PAGE_HEADERS)) request.setRequestHeader(name, value);
    request.upload.addEventListener('progress', ({ loaded }) => onProgress(loaded));
    request.addEventListener('load', () => {
      noteStatus(request.status);
      if (request.status >= 300) {
        refuse(toObjectError(request.status, request.responseText));
        return;
      }
      signal.removeEventListener('abort', abort);
      resolve(strongTag(request.getResponseHeader('etag')));
    });
    request.addEventListener('error', () => refuse(new TypeError('the connection broke')));
    request.addEventListener('abort', () => refuse(new DOMException('stopped', 'AbortError')));
    signal.addEventListener('abort', abort);
    request.send(body);
  });
}
