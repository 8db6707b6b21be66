/*
 * Memory files, and processes that map them privately as QEMU does its RAM
 * (test/fixtures/private-memory.c).
 */
import { type ChildProcess, spawn, type StdioOptions } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, fstatSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { holesPath, native, type RamMapping } from '../../agent/native/native.ts';
import { run } from '../../agent/system/spawn.ts';

const source = new URL('../fixtures/private-memory.c', import.meta.url).pathname;

export const PAGE_BYTES = 4096;
const RAM_FD = 10;

/** A memory file that is closed when it goes out of scope. */
export interface MemoryFile extends Disposable {
  readonly fd: number;
  readonly mapping: RamMapping;
}

export function memoryFile(pageCount: number): MemoryFile {
  const sizeBytes = pageCount * PAGE_BYTES;
  const fd = native.newMemory('berth-test', sizeBytes);
  const { dev, ino } = fstatSync(fd, { bigint: true });
  return {
    fd,
    mapping: { device: dev, inode: ino, sizeBytes },
    [Symbol.dispose]: () => closeSync(fd),
  };
}

type Command = 'clear' | 'fill' | 'revert' | 'split' | 'sum' | 'swap' | 'unmap';

/** A process with a file of its own, or somebody else's, mapped privately. */
export class MappingProcess implements AsyncDisposable {
  readonly #child: ChildProcess;
  readonly #lines: AsyncIterator<string>;
  readonly #ended: Promise<unknown>;

  private constructor(child: ChildProcess) {
    this.#child = child;
    this.#ended = once(child, 'close');
    if (child.stdout === null) throw new Error('no output');
    this.#lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  }

  /** @param isHoled without the holes of the file */
  static async start(program: string, file: MemoryFile, isHoled = false): Promise<MappingProcess> {
    const pageCount = file.mapping.sizeBytes / PAGE_BYTES;
    const between = Array.from({ length: RAM_FD - 3 }, () => 'ignore');
    const stdio = ['pipe', 'pipe', 'inherit', ...between, file.fd] as StdioOptions;
    const env = isHoled ? { LD_PRELOAD: holesPath } : {};
    const args = [String(RAM_FD), String(pageCount)];
    const mapping = new MappingProcess(spawn(program, args, { stdio, env }));
    await mapping.#lines.next();
    return mapping;
  }

  get pid(): number {
    return this.#child.pid ?? -1;
  }

  /** Resolves with the command's result. */
  async tell(command: Command, first: number, count: number, seed = 0): Promise<string> {
    this.#child.stdin?.write(`${command} ${first} ${count} ${seed}\n`);
    const line: IteratorResult<string, unknown> = await this.#lines.next();
    return String(line.value);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#child.kill('SIGKILL');
    await this.#ended;
  }
}

/** Builds the program in a directory of its own. */
export async function buildMappingProgram(): Promise<AsyncDisposable & { readonly path: string }> {
  const directory = await mkdtemp(join(tmpdir(), 'berth-test-'));
  const path = join(directory, 'private-memory');
  await run('cc', ['-std=c11', '-O2', '-Wall', '-Wextra', '-Werror', '-o', path, source]);
  return {
    path,
    [Symbol.asyncDispose]: () => rm(directory, { recursive: true, force: true }),
  };
}
