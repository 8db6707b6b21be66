import type { SandboxResources } from '../../../shared/directory/capacity.ts';
import type { DiskEntry } from '../../../shared/directory/disk-record.ts';
import type { JobPayload } from '../../../shared/jobs/jobs.ts';
import type { SandboxWishes } from '../../region/placement.ts';
import type { RecentPlacements } from '../../region/recent-placements.ts';

/** Costs of hosts, as a share of what they have: one that is fuller by that is as good. */
const COSTS = {
  /** The image would have to be brought there first. */
  image: 0.25,
  /** Nothing of this shape has been started there lately: it has no template, no prewarmed VM. */
  shape: 0.05,
  /** For each of the sandboxes placed last of the account: they should not all be lost at once. */
  ofAccount: 0.1,
} as const;

/** The facts of a sandbox that is to be placed. */
interface NewSandbox {
  readonly accountId: string;
  readonly vcpuCount: number;
  readonly memSizeMib: number;
  readonly image?: JobPayload<'sandbox.create'>['image'];
}

/** Keys under which its placements are remembered. */
function keysOf({ accountId, vcpuCount, memSizeMib, image }: NewSandbox): {
  readonly account: string;
  readonly image: string | undefined;
  readonly shape: string;
} {
  const imageKey = image && `image ${image.digest ?? image.reference}`;
  return {
    account: `account ${accountId}`,
    image: imageKey,
    shape: `shape ${vcpuCount} ${memSizeMib} ${imageKey ?? ''}`,
  };
}

/** Remembers that the sandbox goes to this host, for those that come after it. */
export function notePlacement(
  placements: RecentPlacements,
  sandbox: NewSandbox,
  hostId: string,
): void {
  for (const key of Object.values(keysOf(sandbox))) {
    if (key !== undefined) placements.note(key, hostId);
  }
}

/** The sandbox's wishes, by its disks and by recent placements. */
export function wishesOf(
  placements: RecentPlacements,
  sandbox: NewSandbox,
  {
    need,
    disks,
    canBeOn,
  }: {
    readonly need: SandboxResources;
    readonly disks: readonly DiskEntry[];
    readonly canBeOn: SandboxWishes['canBeOn'];
  },
): SandboxWishes {
  const { account, image, shape } = keysOf(sandbox);
  return {
    ...{ need, canBeOn },
    diskHosts: disks.flatMap(({ leaseHolder }) => leaseHolder ?? []),
    likely: image === undefined ? [] : placements.hostsOf(image),
    costOf: (hostId) =>
      (image !== undefined && placements.countOf(image, hostId) === 0 ? COSTS.image : 0) +
      (placements.countOf(shape, hostId) === 0 ? COSTS.shape : 0) +
      placements.countOf(account, hostId) * COSTS.ofAccount,
  };
}
