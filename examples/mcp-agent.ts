/**
 * An agent that knows nothing but the tools of Berth's MCP server, as a language model does: it
 * writes code, runs it, forks the sandbox, tries two ways in the copies, and keeps the one that
 * works.
 */
import type { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { z } from 'zod';

const Sandbox = z.object({ sandbox_id: z.string() });
const Run = z.object({ exit_code: z.number().optional(), stdout: z.string(), stderr: z.string() });
const File = z.object({ content: z.string() });

const CODE = '/work/median.py';
const TEST = `import sys
sys.path.insert(0, '/work')
from median import median
assert median([3, 1, 2]) == 2, median([3, 1, 2])
assert median([4, 1, 2, 3]) == 2.5, median([4, 1, 2, 3])
print('ok')
`;
/**
 * Code that a model would write: at first without sorting, then with two ideas of how to fix it.
 */
const FIRST = 'def median(values):\n    return values[len(values) // 2]\n';
const WAYS = {
  sorted: 'def median(values):\n    return sorted(values)[len(values) // 2]\n',
  statistics: 'import statistics\n\ndef median(values):\n    return statistics.median(values)\n',
} as const;

/** Uses a tool. @throws Error with what the server says of its failure */
async function use<T>(
  client: Client,
  answer: z.ZodType<T>,
  name: string,
  input: Readonly<Record<string, unknown>>,
): Promise<T> {
  const result = await client.callTool({ name, arguments: input });
  if (result.isError === true) throw new Error(JSON.stringify(result.content));
  return answer.parse(result.structuredContent);
}

async function passes(client: Client, sandbox: string): Promise<boolean> {
  const command = 'python3 /work/test.py';
  return (await use(client, Run, 'sandbox_run', { sandbox, command })).exit_code === 0;
}

const write = (client: Client, sandbox: string, path: string, content: string): Promise<unknown> =>
  use(client, z.unknown(), 'file_write', { sandbox, path, content });

export interface Kept {
  /** The way that was kept. */
  readonly way: string;
  readonly code: string;
  /** Whether each way passed its tests. */
  readonly passed: Readonly<Record<string, boolean>>;
}

/** @param client is connected to a server, by stdio or by HTTP */
export async function mendMedian(client: Client): Promise<Kept> {
  const { sandbox_id: base } = await use(client, Sandbox, 'sandbox_create', { mem_size_mib: 256 });
  const copies: string[] = [];
  try {
    await write(client, base, '/work/test.py', TEST);
    await write(client, base, CODE, FIRST);
    if (await passes(client, base)) throw new Error('there is nothing to fix');
    const passed: Record<string, boolean> = {};
    for (const [way, code] of Object.entries(WAYS)) {
      const { sandbox_id: copy } = await use(client, Sandbox, 'sandbox_fork', { sandbox: base });
      copies.push(copy);
      await write(client, copy, CODE, code);
      passed[way] = await passes(client, copy);
      if (!passed[way]) continue;
      const kept = await use(client, File, 'file_read', { sandbox: copy, path: CODE });
      await write(client, base, CODE, kept.content);
      if (!(await passes(client, base))) throw new Error('what passed in the copy fails');
      return { way, code: kept.content, passed };
    }
    throw new Error('no way works');
  } finally {
    for (const sandbox of [...copies, base]) {
      await use(client, z.unknown(), 'sandbox_delete', { sandbox });
    }
  }
}
