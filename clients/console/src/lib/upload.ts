import { callXml, ObjectError, objectPath, send, textOf } from './objects.ts';

const MiB = 1024 * 1024;
/** Larger files go in parts, which can be continued. */
const WHOLE_MAX = 16 * MiB;
const PART_MIN = 8 * MiB;
const PARTS_MAX = 10_000;
const PARTS_AT_ONCE = 3;
const ATTEMPTS = 8;
const BACKOFF_MAX_MS = 10_000;
const KEPT = 'berth:uploads';

export interface UploadOptions {
  readonly disk: string;
  readonly key: string;
  readonly file: File;
  readonly signal: AbortSignal;
  readonly onProgress: (bytes: number) => void;
}

/*
 * Unfinished uploads by disk, key and file, so that the same file goes on where it stopped, also
 * after a reload. Only ids of uploads are kept, which are worth nothing without a key.
 */
type Kept = Record<string, string>;

function kept(): Kept {
  try {
    return JSON.parse(localStorage.getItem(KEPT) ?? '{}') as Kept;
  } catch {
    return {};
  }
}

function keep(name: string, uploadId: string | undefined): void {
  const all = kept();
  if (uploadId === undefined) delete all[name];
  else all[name] = uploadId;
  localStorage.setItem(KEPT, JSON.stringify(all));
}

const nameOf = ({ disk, key, file }: UploadOptions): string =>
  JSON.stringify([disk, key, file.size, file.lastModified]);

/** Whether it may succeed when it is tried again. */
const mayPass = (error: unknown): boolean =>
  error instanceof ObjectError
    ? error.status >= 500 || error.status === 429
    : error instanceof TypeError;

async function again<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
  for (let n = 1; ; n += 1) {
    try {
      signal.throwIfAborted();
      return await work();
    } catch (error) {
      if (signal.aborted || n >= ATTEMPTS || !mayPass(error)) throw error;
      const ms = Math.min(BACKOFF_MAX_MS, 250 * 2 ** n) * (0.5 + Math.random() / 2);
      await new Promise((resolve) => {
        setTimeout(resolve, ms);
      });
    }
  }
}

interface Part {
  readonly number: number;
  readonly etag: string;
}

async function listParts(disk: string, key: string, uploadId: string): Promise<Part[]> {
  const parts: Part[] = [];
  for (let after = '0'; ;) {
    const url = objectPath(disk, key, { uploadId, 'part-number-marker': after });
    const answer = await callXml('GET', url);
    for (const each of answer.getElementsByTagName('Part')) {
      parts.push({ number: Number(textOf(each, 'PartNumber')), etag: textOf(each, 'ETag') });
    }
    if (textOf(answer, 'IsTruncated') !== 'true') return parts;
    after = textOf(answer, 'NextPartNumberMarker');
  }
}

/** The upload to go on with, and what it has already. */
async function openUpload(options: UploadOptions): Promise<{ id: string; parts: Part[] }> {
  const { disk, key } = options;
  const name = nameOf(options);
  const known = kept()[name];
  if (known !== undefined) {
    try {
      return { id: known, parts: await again(options.signal, () => listParts(disk, key, known)) };
    } catch (error) {
      if (!(error instanceof ObjectError) || error.status !== 404) throw error;
    }
  }
  const url = objectPath(disk, key, { uploads: '' });
  const answer = await again(options.signal, () => callXml('POST', url));
  const id = textOf(answer, 'UploadId');
  keep(name, id);
  return { id, parts: [] };
}

async function uploadParts(options: UploadOptions): Promise<void> {
  const { disk, key, file, signal, onProgress } = options;
  const size = Math.max(PART_MIN, Math.ceil(file.size / PARTS_MAX / MiB) * MiB);
  const count = Math.ceil(file.size / size);
  const { id, parts } = await openUpload(options);
  const done = new Map(parts.map((part) => [part.number, part]));
  const sent = new Map<number, number>();
  const lengthOf = (number: number): number => Math.min(size, file.size - (number - 1) * size);
  const report = (): void => {
    let sum = 0;
    for (const number of done.keys()) sum += lengthOf(number);
    for (const loaded of sent.values()) sum += loaded;
    onProgress(sum);
  };
  report();
  const waiting = Array.from({ length: count }, (_, n) => n + 1).filter((n) => !done.has(n));
  const work = async (): Promise<void> => {
    for (let number; (number = waiting.shift()) !== undefined;) {
      const current = number;
      const body = file.slice((current - 1) * size, current * size);
      const url = objectPath(disk, key, { partNumber: String(current), uploadId: id });
      const onPart = (loaded: number): void => {
        sent.set(current, loaded);
        report();
      };
      const etag = await again(signal, () => send(url, body, { signal, onProgress: onPart }));
      sent.delete(current);
      done.set(current, { number: current, etag });
      report();
    }
  };
  await Promise.all(Array.from({ length: PARTS_AT_ONCE }, work));
  const list = [...done.values()].sort((a, b) => a.number - b.number).map(partXml);
  const body = `<CompleteMultipartUpload>${list.join('')}</CompleteMultipartUpload>`;
  await again(signal, () => callXml('POST', objectPath(disk, key, { uploadId: id }), body));
  keep(nameOf(options), undefined);
}

const partXml = ({ number, etag }: Part): string =>
  `<Part><PartNumber>${number}</PartNumber><ETag>${etag.replaceAll('"', '&quot;')}</ETag></Part>`;

/**
 * Puts a file on a disk. A large one goes in parts: when it was stopped by whatever, the same call
 * goes on with the parts that are missing.
 */
export async function upload(options: UploadOptions): Promise<void> {
  const { disk, key, file, signal, onProgress } = options;
  if (file.size > WHOLE_MAX) return uploadParts(options);
  const url = objectPath(disk, key);
  await again(signal, () => send(url, file, { signal, onProgress }));
}
