import { type FileHandle, mkdir, open, readdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { AppError, errnoOf } from '../../../shared/errors.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import type { OnThread } from './shared-threads.ts';

/*
 * Output of commands in sandboxes, on the host's disk. A command's output is a series of segments
 * `<exec>.<offset of its first byte>`, each a series of frames: u8 stream (1 stdout, 2 stderr), u32
 * length, bytes. Frames are only appended. When a segment is full, the next one begins and the one
 * before it is removed, so that the newest output is kept. If a crash or a failed write cuts off
 * the last frame, the guest sends it again: its ring keeps output until it is acknowledged, which
 * only whole frames are.
 */

const HEAD_BYTES = 5;
const FRAMES_AT_ONCE = 20_000;

export type OutputStream = 1 | 2;

const segmentName = (execId: string, start: number): string => `${execId}.${start}`;

/** Where the segments of a command begin, the oldest first. */
async function segmentStarts(directory: string, execId: string): Promise<number[]> {
  const names = await readdir(directory);
  return names
    .filter((name) => name.startsWith(`${execId}.`))
    .map((name) => Number(name.slice(execId.length + 1)))
    .sort((a, b) => a - b);
}

/**
 * Goes through the whole frames of a segment, and lets others have their turn meanwhile: there may
 * be one for each byte, so none is kept.
 * @param found told where the bytes of each frame lie
 * @returns where the last whole frame ends; what follows was cut off
 */
async function eachFrame(
  segment: Buffer,
  found: (stream: OutputStream, from: number, end: number) => void,
): Promise<number> {
  let at = 0;
  for (let count = 1; at + HEAD_BYTES <= segment.length; count += 1) {
    const from = at + HEAD_BYTES;
    const end = from + segment.readUInt32LE(at + 1);
    if (end > segment.length) break;
    found(segment.readUInt8(at) === 2 ? 2 : 1, from, end);
    at = end;
    if (count % FRAMES_AT_ONCE === 0) await nextTurn();
  }
  return at;
}

/** Where the output of a sandbox's commands lies, and how calls on it are made. */
export interface OutputDirectory {
  readonly directory: string;
  readonly onThread: OnThread;
}

/** A command's segments; the last one is written to. */
interface Segments {
  readonly starts: number[];
  /** Where the whole frames of the last one end. */
  readonly wholeBytes: number;
}

/**
 * The output of a command that runs; one writer at a time. After a failure it can be written on.
 */
export class ExecOutput {
  readonly #directory: string;
  readonly #execId: string;
  readonly #onThread: OnThread;
  readonly #starts: number[];
  /** Where the whole frames of the last segment end: it is cut there when it is opened. */
  #wholeBytes: number;
  #file: FileHandle | undefined;
  #end: number;

  private constructor(
    outputs: OutputDirectory,
    execId: string,
    { starts, wholeBytes }: Segments = { starts: [], wholeBytes: 0 },
    end = 0,
  ) {
    this.#directory = outputs.directory;
    this.#onThread = outputs.onThread;
    this.#execId = execId;
    this.#starts = starts;
    this.#wholeBytes = wholeBytes;
    this.#end = end;
  }

  /** The output of a command that has none yet, and the directory for it. */
  static create(outputs: OutputDirectory, execId: string): Promise<ExecOutput> {
    return outputs.onThread(async () => {
      await mkdir(outputs.directory, { recursive: true, mode: 0o700 });
      return new ExecOutput(outputs, execId);
    });
  }

  /** Opens a command's output as a former agent left it. */
  static open(outputs: OutputDirectory, execId: string): Promise<ExecOutput> {
    return outputs.onThread(() => ExecOutput.#open(outputs, execId));
  }

  static async #open(outputs: OutputDirectory, execId: string): Promise<ExecOutput> {
    const { directory } = outputs;
    await mkdir(directory, { recursive: true, mode: 0o700 });
    const starts = await segmentStarts(directory, execId);
    const last = starts.at(-1);
    if (last === undefined) return new ExecOutput(outputs, execId);
    const path = join(directory, segmentName(execId, last));
    let end = last;
    const wholeBytes = await eachFrame(await readFile(path), (_stream, from, to) => {
      end += to - from;
    });
    const output = new ExecOutput(outputs, execId, { starts, wholeBytes }, end);
    output.#file = await output.#openSegment(last, wholeBytes);
    return output;
  }

  /** How many bytes of the command's output have been stored, dropped ones included. */
  get end(): number {
    return this.#end;
  }

  /** How many of these have been dropped. */
  get droppedBytes(): number {
    return this.#starts[0] ?? 0;
  }

  /**
   * @param offset of the first byte within the output of both streams; bytes that are stored
   *   already are skipped
   */
  append(stream: OutputStream, offset: number, bytes: Buffer): Promise<void> {
    return this.#onThread(() => this.#append(stream, offset, bytes));
  }

  /**
   * Makes what was appended durable, by fsync(2): network file systems may leave attributes, and
   * the file's creation, with the host after fdatasync(2).
   */
  async sync(): Promise<void> {
    const file = this.#file;
    if (file !== undefined) await this.#onThread(() => file.sync());
  }

  async close(): Promise<void> {
    if (this.#file !== undefined) await this.#onThread(() => this.#close());
  }

  async #append(stream: OutputStream, offset: number, bytes: Buffer): Promise<void> {
    if (offset > this.#end) await this.#skipTo(offset);
    const fresh = bytes.subarray(this.#end - offset);
    if (fresh.length === 0) return;
    const file = await this.#segment();
    const head = Buffer.alloc(HEAD_BYTES);
    head.writeUInt8(stream);
    head.writeUInt32LE(fresh.length, 1);
    try {
      await file.appendFile(Buffer.concat([head, fresh]));
    } catch (error) {
      // A part of the frame may have been written: the next one opens the segment, and cuts it off.
      await this.#close().catch(() => undefined);
      throw error;
    }
    this.#wholeBytes += HEAD_BYTES + fresh.length;
    this.#end += fresh.length;
  }

  /** The file is closed also when this fails. */
  async #close(): Promise<void> {
    const file = this.#file;
    this.#file = undefined;
    await file?.close();
  }

  /**
   * Drops the older output: the guest has lost the bytes in between, and a gap must not go unseen.
   */
  async #skipTo(offset: number): Promise<void> {
    await this.#close();
    await this.#dropOldest(0);
    this.#end = offset;
  }

  async #segment(): Promise<FileHandle> {
    const last = this.#starts.at(-1);
    if (last !== undefined && this.#end - last < SANDBOX_LIMITS.sandboxExecOutputBytes) {
      return (this.#file ??= await this.#openSegment(last, this.#wholeBytes));
    }
    await this.#close();
    await this.#dropOldest(1);
    const file = await this.#openSegment(this.#end, 0);
    this.#starts.push(this.#end);
    this.#wholeBytes = 0;
    return (this.#file = file);
  }

  /** Opens a segment, which may be new, and cuts off what is not whole. */
  async #openSegment(start: number, wholeBytes: number): Promise<FileHandle> {
    const name = segmentName(this.#execId, start);
    const file = await open(join(this.#directory, name), 'a', 0o600);
    try {
      await file.truncate(wholeBytes);
      return file;
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  /** Removes all segments but the newest `kept`; each is known until it is gone. */
  async #dropOldest(kept: number): Promise<void> {
    for (let oldest = this.#starts[0]; oldest !== undefined; oldest = this.#starts[0]) {
      if (this.#starts.length <= kept) return;
      await rm(join(this.#directory, segmentName(this.#execId, oldest)), { force: true });
      this.#starts.shift();
    }
  }
}

/**
 * Reads the kept output of a command, whether it still runs or not.
 * @throws AppError `unavailable` when it cannot be read now
 */
export const readExecOutput = (
  { directory, onThread }: OutputDirectory,
  execId: string,
): Promise<{ stdout: Buffer; stderr: Buffer }> => onThread(() => readOutput(directory, execId));

async function readOutput(
  directory: string,
  execId: string,
): Promise<{ stdout: Buffer; stderr: Buffer }> {
  const starts = await segmentStarts(directory, execId).catch(unlessAbsent);
  const paths = (starts ?? []).map((start) => join(directory, segmentName(execId, start)));
  const segments: Buffer[] = [];
  const lengths = { 1: 0, 2: 0 };
  for (const path of paths) {
    // A segment may go while this reads: then a newer one holds what counts.
    const segment = await readFile(path).catch(unlessAbsent);
    if (segment === undefined) continue;
    segments.push(segment);
    await eachFrame(segment, (stream, from, end) => {
      lengths[stream] += end - from;
    });
  }
  const outputs = { 1: Buffer.alloc(lengths[1]), 2: Buffer.alloc(lengths[2]) };
  const ends = { 1: 0, 2: 0 };
  for (const segment of segments) {
    await eachFrame(segment, (stream, from, end) => {
      ends[stream] += segment.copy(outputs[stream], ends[stream], from, end);
    });
  }
  return { stdout: outputs[1], stderr: outputs[2] };
}

/** Storage that fails is not a command without output. */
function unlessAbsent(cause: unknown): undefined {
  if (errnoOf(cause) === 'ENOENT') return undefined;
  const message = 'the output of the command cannot be read now; try again';
  throw new AppError('unavailable', message, { cause });
}

export const removeExecOutput = (
  { directory, onThread }: OutputDirectory,
  execId: string,
): Promise<void> =>
  onThread(async () => {
    for (const start of await segmentStarts(directory, execId).catch(() => [])) {
      await rm(join(directory, segmentName(execId, start)), { force: true });
    }
  });
