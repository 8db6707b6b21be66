import type { JobResults } from '../../../shared/jobs/jobs.ts';
import { AppError } from '../../../shared/errors.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import type { SandboxRow } from '../../system/journal/sandbox-journal.ts';

export type Kin = Pick<SandboxRow, 'id' | 'parentId' | 'rootDiskId'>;
export type DependentForks = NonNullable<JobResults['sandbox.delete']['dependentForks']>;

/** Sandboxes and snapshots by id: each stands on the layers of its parent. */
export type Family = ReadonlyMap<string, Kin>;

export function familyOf(sandboxes: readonly SandboxRow[], snapshots: readonly Kin[]): Family {
  const kin = sandboxes.map(({ id, parentId, snapshotId, rootDiskId }) => ({
    ...{ id, rootDiskId },
    parentId: parentId ?? snapshotId,
  }));
  return new Map([...kin, ...snapshots].map((each) => [each.id, each]));
}

/** How many generations of sandboxes a sandbox descends from; 0 unless it is a fork. */
export function depthOf(sandboxId: string, family: Family): number {
  let depth = 0;
  for (let at = family.get(sandboxId); at?.parentId !== undefined; at = family.get(at.parentId))
    depth += 1;
  return depth;
}

/**
 * @param generations how many are to be added below the sandbox
 * @throws AppError `sandbox_start_conflict` when they would be too many
 */
export function refuseIfDeep(sandboxId: string, generations: number, family: Family): void {
  if (depthOf(sandboxId, family) + generations <= SANDBOX_LIMITS.sandboxForkDepthMax) return;
  const message = `forks of forks go ${SANDBOX_LIMITS.sandboxForkDepthMax} generations deep at most`;
  throw new AppError('sandbox_start_conflict', message);
}

/** The descendants of a sandbox, which must be deleted before it; undefined when there are none. */
export function dependentForksOf(sandboxId: string, family: Family): DependentForks | undefined {
  const children = new Map<string, Kin[]>();
  for (const kin of family.values()) {
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
  return { count: found.length, diskIds: diskIds.slice(0, SCHEMA_LIMITS.dependentForksListedMax) };
}
