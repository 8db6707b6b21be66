import { readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { failpoint } from '../../../system/failpoint.ts';

interface TemplateEvictionDeps {
  readonly directory: string;
  /** Keys that checkpoints and recorded machines depend on, found by looking at each. */
  readonly neededKeys: () => Promise<ReadonlySet<string>>;
  /** Whether this agent starts machines from the template, or has opened it for one. */
  readonly isOpen: (key: string) => boolean;
}

/** How many unneeded templates are kept. */
const UNUSED_MAX = 8;

/**
 * Evicts the oldest unreferenced templates of a host that shares them with no other.
 *
 * The look at the machines takes time, and a machine that is paused, resumed or forked meanwhile
 * may show neither checkpoint nor run directory when it is looked at. It is not missed: whatever
 * runs has its template open in this agent, and opened it before its checkpoint went away; a fork's
 * parent stays, and has the same key. So `isOpen` is asked after the look, right before each
 * removal, and a template that it names stays. That knows nothing of other hosts, and a machine
 * that moves between hosts may be seen at neither: templates that hosts share are not evicted
 * (decision 0084).
 */
export async function evictTemplates(deps: TemplateEvictionDeps): Promise<void> {
  const { directory, neededKeys, isOpen } = deps;
  const names = await readdir(directory);
  const needed = await neededKeys();
  const unused = names.filter(
    (name) => !name.startsWith('.') && !needed.has(name) && !isOpen(name),
  );
  const dated = unused.map(async (name) => ({
    name,
    at: (await stat(join(directory, name))).mtimeMs,
  }));
  const oldestFirst = (await Promise.all(dated)).toSorted((a, b) => a.at - b.at);
  for (const { name } of oldestFirst.slice(0, Math.max(0, unused.length - UNUSED_MAX))) {
    await failpoint('evict template', async () => {
      if (!isOpen(name)) await rm(join(directory, name), { recursive: true, force: true });
    });
  }
}
