import type { JobResults } from '../../shared/jobs/jobs.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { SandboxRow } from '../journal/sandbox-journal.ts';

export type Kin = Pick<SandboxRow, 'id' | 'parentId' | 'rootDiskId'>;
export type DependentForks = NonNullable<JobResults['sandbox.delete']['dependentForks']>;

/** How many generations of sandboxes a sandbox descends from; 0 unless it is a fork. */
export function depthOf(sandboxId: string, all: ReadonlyMap<string, Kin>): number {
  let depth = 0;
  for (let at = all.get(sandboxId); at?.parentId !== undefined; at = all.get(at.parentId))
    depth += 1;
  return depth;
}

/** The descendants of a sandbox, which must be deleted before it; undefined when there are none. */
export function dependentForksOf(
  sandboxId: string,
  all: ReadonlyMap<string, Kin>,
): DependentForks | undefined {
  const children = new Map<string, Kin[]>();
  for (const kin of all.values()) {
    if (kin.parentId === undefined) continue;
    const siblings = children.get(kin.parentId) ?? [];
    siblings.push(kin);
    children.set(kin.parentId, siblings);
  }
  const found: Kin[] = [];
  // Collects one generation after the other; reversed, the deepest generation comes first.
  for (let generation = children.get(sandboxId) ?? []; generation.length > 0;) {
    found.push(...generation);
    generation = generation.flatMap((kin) => children.get(kin.id) ?? []);
  }
  if (found.length === 0) return undefined;
  const diskIds = found.toReversed().map(({ rootDiskId }) => rootDiskId);
  return { count: found.length, diskIds: diskIds.slice(0, LIMITS.dependentForksListedMax) };
}
