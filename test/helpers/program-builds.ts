/*
 * Builds of the programs that containers see at /.berth: the one that set-up has made and, with
 * BERTH_TEST_FULL=1, one that reports every wrong memory access and undefined behaviour, and one of
 * arm64, which runs under qemu-user. The programs that they start are the host's.
 */
import { chmod, readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { toolsRoot } from '../../agent/native/native.ts';
import { run } from '../../agent/system/spawn.ts';
import { isFull } from './full.ts';
import { temporaryDirectory } from './temporary.ts';

export interface ProgramBuild {
  readonly name: string;
  /** An executable file. */
  readonly path: string;
}

const native = new URL('../../agent/native/', import.meta.url).pathname;
const SANITIZED = ['-g', '-O1', '-fsanitize=address,undefined', '-fno-sanitize-recover=all'];

async function compile(compiler: string, args: readonly string[]): Promise<void> {
  await run(compiler, ['-std=c11', ...args], { timeoutMs: 60_000 });
}

/** The builds of a program, whose sources are all C files of its folder. */
export async function buildsOf(program: 'init' | 'search'): Promise<ProgramBuild[]> {
  const plain = { name: program, path: join(toolsRoot, '.berth', program) };
  if (!isFull) return [plain];
  const { path: directory, ...temporary } = await temporaryDirectory();
  await chmod(directory, 0o755); // Some tests run the program as another user.
  const names = (await readdir(join(native, program))).filter((name) => name.endsWith('.c'));
  const sources = names.map((name) => join(native, program, name));
  const sanitized = join(directory, 'sanitized');
  const foreign = join(directory, 'foreign');
  const emulated = join(directory, 'emulated');
  await compile('cc', [...SANITIZED, '-o', sanitized, ...sources]);
  await compile('aarch64-linux-gnu-gcc', ['-O2', '-static', '-o', foreign, ...sources]);
  await writeFile(emulated, `#!/bin/sh\nexec qemu-aarch64 ${foreign} "$@"\n`, { mode: 0o755 });
  test.after.always(() => temporary[Symbol.asyncDispose]()); // Last: tests follow it at once.
  return [
    plain,
    { name: `sanitized ${program}`, path: sanitized },
    { name: `arm64 ${program}`, path: emulated },
  ];
}
