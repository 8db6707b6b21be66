/*
 * The search program (agent/native/search/search.c), run directly on a tree.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { SearchOutput } from '../../agent/commands/search-output.ts';
import { toolsRoot } from '../../agent/native/native.ts';
import type { FoundLine } from './searches.ts';

/** The directory with the search engines and their libraries that set-up has made. */
export const ownTools = join(toolsRoot, '.berth');

/** How to search; by default any tree with rg, and as if nothing were known of the pattern. */
export interface SearchOptions {
  readonly recursive?: boolean;
  readonly workers?: number;
  readonly maxResults?: number;
  readonly leftMs?: number;
  /** Replaces the directory with the search engines and their libraries. */
  readonly tools?: string;
  /** The pattern for GNU grep; that for rg when it is left out. */
  readonly gnu?: string;
  readonly ignoresCase?: boolean;
  /** A text that every match has; none when it is left out. */
  readonly required?: string;
  /** Whether the required text is the whole pattern. */
  readonly isText?: boolean;
  readonly needsTrial?: boolean;
  /** The user as whom it runs. */
  readonly uid?: number;
}

/** A match as the search program reports it. */
interface Found extends FoundLine {
  readonly truncated?: boolean;
}

/**
 * Searches a directory with the program at a path.
 * @param pattern for rg; empty: GNU grep searches
 */
export async function search(
  path: string,
  directory: string,
  pattern: string,
  options: SearchOptions = {},
) {
  const { recursive = true, workers = 2, maxResults = 1000, leftMs = 60_000 } = options;
  const output = new SearchOutput({ prefix: '', maxResults, onClosed: () => undefined });
  const { tools = ownTools, gnu = pattern, ignoresCase = false } = options;
  const { required = '', isText = false, needsTrial = true } = options;
  const flags = [ignoresCase, needsTrial, isText].map(Number);
  const numbers = [Number(recursive), workers, maxResults, leftMs, ...flags].map(String);
  const args = [tools, ...numbers, pattern, gnu, required];
  const child = spawn(path, args, {
    cwd: directory,
    uid: options.uid,
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ASAN_OPTIONS: 'detect_leaks=0:exitcode=99', UBSAN_OPTIONS: 'exitcode=99' },
  });
  child.stdout.on('data', (chunk: Buffer) => output.write(chunk));
  const [code] = (await once(child, 'close')) as [number | null];
  const matches = JSON.parse(output.takeMatches().toString()) as Found[];
  const { reason, problem, isPatternRefused, statistics } = output;
  return { code, matches, reason, problem, isPatternRefused, ...statistics };
}
