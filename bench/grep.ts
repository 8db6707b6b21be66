import { execFile } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import type { GrepResult } from '../shared/schemas/grep.ts';
import type { ApiClient } from '../test/helpers/api.ts';
import { createDisk, exec } from '../test/helpers/disks.ts';
import { diskContents } from '../test/helpers/host.ts';
import { Stack } from '../test/helpers/stack.ts';
import { GiB, MiB } from '../shared/units.ts';
import { readFlags } from './flags.ts';
import { residentMiB } from './process-usage.ts';
import {
  alternate,
  inTurns,
  median,
  printComparison,
  printFigures,
  printRows,
  timed,
} from './statistics.ts';

/** Long enough for the container pool to replace what was taken. */
const PACE_MS = 150;
const TREE = { directories: 200, filesEach: 105, fileBytes: 56_000 };
const RARE_EACH_FILES = 100;
const COPIES = 4;
/** The rare text is in one of its files. */
const SMALL = { directories: 100, filesEach: 100, fileBytes: 40_000 };

const rare = 'needle in a haystack';
const frequent = 'everywhere';

/**
 * Fills the disk with `copies` trees of files of random words. The rare text is in every hundredth
 * file, the frequent one in nearly every second.
 */
const treeScript = (copies: number): string => `exec python3 - <<'END'
import os, random
random.seed(7)
letters = 'abcdfghijklmnopqrstuvwxyz'
words = [''.join(random.choices(letters, k=random.randint(2, 10))) for _ in range(5000)]
text = '\\n'.join(' '.join(random.choices(words, k=10)) for _ in range(40000))
count = 0
for copy in range(${copies}):
    for d in range(${TREE.directories}):
        path = f'tree{copy}/d{d % 20}/e{d}'
        os.makedirs(path)
        for f in range(${TREE.filesEach}):
            start = random.randrange(len(text) - ${TREE.fileBytes})
            body = text[start:start + ${TREE.fileBytes}]
            lines = []
            if count % ${RARE_EACH_FILES} == 0: lines.append('${rare}')
            if count % 9 < 4: lines.append('it is ${frequent} here')
            middle = len(body) // 2
            with open(f'{path}/f{f}.txt', 'w') as file:
                file.write(body[:middle] + '\\n' + '\\n'.join(lines) + '\\n' + body[middle:] + '\\n')
            count += 1
for f in range(${SMALL.directories * SMALL.filesEach}):
    path = f'small/d{f % ${SMALL.directories}}'
    os.makedirs(path, exist_ok=True)
    start = random.randrange(len(text) - ${SMALL.fileBytes})
    line = '\\n${rare}\\n' if f == 7777 else '\\n'
    with open(f'{path}/f{f}.txt', 'w') as file: file.write(text[start:start + ${SMALL.fileBytes}] + line)
os.makedirs('empty')
os.makedirs('long')
with open('long/lines', 'w') as file: file.write(('x' * 60000 + '\\n') * 400)
END`;

type Search = (input: Record<string, unknown>) => Promise<GrepResult>;

/** Calls the API without the checks of the tests' client. */
function plainGrep(api: ApiClient, diskId: string): Search {
  const url = `${api.baseUrl}/api/disks/${diskId}/grep`;
  const headers = { authorization: `Bearer ${api.key}`, 'content-type': 'application/json' };
  return async (input) => {
    const body = JSON.stringify({ directory: 'tree0', recursive: true, ...input });
    const response = await fetch(url, { method: 'POST', headers, body });
    const reply = (await response.json()) as { success: boolean; data: GrepResult };
    if (!reply.success) throw new Error(JSON.stringify(reply));
    return reply.data;
  };
}

/** The baseline: rg itself on the mounted disk, with as many threads as there are processors. */
const bareRg = (directory: string, pattern: string) => async (): Promise<void> => {
  await promisify(execFile)(
    'rg',
    ['-uu', `-j${availableParallelism()}`, '--line-number', '-e', pattern, directory],
    {
      maxBuffer: 64 * MiB,
    },
  );
};

const completed = (search: Search, input: Record<string, unknown>) => async (): Promise<void> => {
  const result = await search(input);
  if (result.stoppedReason !== 'completed') throw new Error(JSON.stringify(result).slice(0, 500));
};

interface FullScan {
  readonly rounds: number;
  /** On the disk. */
  readonly directory: string;
  readonly bytes: number;
  readonly pattern: string;
  readonly target: string;
}

async function benchFullScan(search: Search, disk: string, scan: FullScan): Promise<void> {
  const { directory, bytes, pattern, target, rounds } = scan;
  const ours = completed(search, { directory, pattern });
  const baseline = bareRg(`${disk}/${directory}`, pattern);
  const times = await alternate(rounds, ours, baseline, 2);
  const { filesScanned, matches } = await search({ directory, pattern });
  const rate = (samples: number[]): string => (bytes / GiB / (median(samples) / 1000)).toFixed(2);
  printComparison(
    `grep -E '${pattern}' of ${filesScanned} files, ${(bytes / GiB).toFixed(2)} GiB, ${matches.length} matches; ` +
      `GiB/s: ours ${rate(times.ours)}, rg ${rate(times.baseline)}`,
    times,
    { ours: 'HTTP grep', baseline: 'rg -uu on the mount' },
    { unit: 'ms', target },
  );
}

const bytesOf = (tree: typeof TREE): number => tree.directories * tree.filesEach * tree.fileBytes;

async function benchFullScans(search: Search, disk: string, rounds: number): Promise<void> {
  const small = { rounds, directory: 'small', bytes: bytesOf(SMALL) };
  await benchFullScan(search, disk, { ...small, pattern: rare, target: '≤ 1.2' });
  const large = { rounds, directory: 'tree0', bytes: bytesOf(TREE) };
  await benchFullScan(search, disk, { ...large, pattern: rare, target: '≤ 1.15' });
  // Matches need not have any text in common: the engine gets every file.
  await benchFullScan(search, disk, { ...large, pattern: 'needle in|zzzyzzy', target: 'none' });
}

async function benchEmpty(search: Search, rounds: number): Promise<void> {
  const ours = completed(search, { directory: 'empty', pattern: rare });
  const paced = async (): Promise<number> => {
    const ms = await timed(ours);
    await sleep(PACE_MS);
    return ms;
  };
  const times = {
    ...(await inTurns(2 * rounds, { paced })),
    ...(await inTurns(2 * rounds, { backToBack: () => timed(ours) })),
  };
  printRows(
    `search of an empty directory (target ≤ 12 ms), one per ${PACE_MS} ms and back to back`,
    [
      { name: 'HTTP grep, paced', samples: times.paced },
      { name: 'HTTP grep, back to back', samples: times.backToBack },
    ],
    'ms',
  );
}

async function benchEarlyStop(search: Search, rounds: number): Promise<void> {
  const stopped = async (): Promise<void> => {
    const result = await search({ pattern: frequent, maxResults: 10 });
    if (result.stoppedReason !== 'max_results') throw new Error(result.stoppedReason);
  };
  const whole = completed(search, { pattern: frequent, maxResults: 10_000 });
  printComparison(
    'grep of a frequent word, stopped after 10 matches',
    await alternate(rounds, stopped, whole),
    { ours: 'maxResults 10', baseline: 'the whole scan' },
    { unit: 'ms', target: '≤ 0.3' },
  );
}

/** By how much the process's memory grows at most while the work is under way. */
async function growthMiB(pid: number, work: Promise<unknown>): Promise<number> {
  const before = await residentMiB(pid);
  let most = before;
  const sampling = setInterval(() => {
    residentMiB(pid)
      .then((now) => {
        most = Math.max(most, now);
      })
      .catch(() => undefined); // The process has ended.
  }, 5);
  await work.finally(() => clearInterval(sampling));
  return most - before;
}

async function benchDeadline(search: Search): Promise<void> {
  // Slow on purpose: a bounded repetition of classes has no literal to look for.
  const pattern = '([a-z]+ ){6}[a-z]*zzzz[a-z]*( [a-z]+){2}';
  const samples: number[] = [];
  for (let round = 0; round < 3; round += 1) {
    const input = { directory: '', pattern, maxDurationSeconds: 1 };
    const { stoppedReason, durationMs } = await search(input);
    if (stoppedReason !== 'deadline') throw new Error(`ended as ${stoppedReason}`);
    samples.push(durationMs);
  }
  const title = `answer to a deadline of 1 s on ${COPIES} trees (target ≤ 1300 ms)`;
  printRows(title, [{ name: 'HTTP grep', samples }], 'ms');
}

async function benchMemory(search: Search, pid: number): Promise<void> {
  const growth: Record<string, number> = {};
  for (const [what, input] of [
    ['few matches', { pattern: rare }],
    ['10000 lines', { pattern: 'a', maxResults: 10_000 }],
    ['the largest answer', { directory: 'long', pattern: 'x', maxResults: 10_000 }],
  ] as const) {
    growth[what] = await growthMiB(pid, search({ directory: '', ...input }));
  }
  const title = `growth of the agent's memory during a search of ${COPIES} trees`;
  printFigures(title, growth, { unit: 'MiB', target: '< 64', digits: 0 });
}

/** `npm run bench -- grep`: see docs/benchmarks.md. */
export async function benchGrep(args: readonly string[]): Promise<void> {
  const parts = ['scan', 'empty', 'stop', 'deadline', 'memory'] as const;
  const { rounds, only } = readFlags(args, { rounds: 15 }, parts);
  await using stack = await Stack.start({ DISK_SIZE_BYTES: String(8 * GiB) });
  const api = await stack.newClient();
  const { id } = await createDisk(api);
  const copies = only.has('deadline') || only.has('memory') ? COPIES : 1;
  const { exitCode, stderr } = await exec(api, id, treeScript(copies));
  if (exitCode !== 0) throw new Error(stderr);
  const search = plainGrep(api, id);
  if (only.has('scan')) await benchFullScans(search, diskContents(stack, id), rounds);
  if (only.has('empty')) await benchEmpty(search, rounds);
  if (only.has('stop')) await benchEarlyStop(search, rounds);
  if (only.has('deadline')) await benchDeadline(search);
  if (only.has('memory')) await benchMemory(search, stack.agent.pid);
}
