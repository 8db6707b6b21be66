import { repeatInBackground } from '../../shared/background.ts';
import type { ControlNode, ControlNodes } from '../../shared/directory/control-nodes.ts';
import type { Hosts } from '../../shared/directory/hosts.ts';
import { DIRECTORY_LIMITS } from '../../shared/directory/limits.ts';
import type { LinkShare } from './link-share.ts';

/**
 * Keeps a node's entry in the directory fresh until it is withdrawn, and the share of the hosts
 * that are to link to it.
 */
export function announceNode(
  { controlNodes, hosts }: { controlNodes: ControlNodes; hosts: Pick<Hosts, 'count'> },
  node: Omit<ControlNode, 'linkShare'>,
  share: LinkShare,
): {
  /** Keeps new agent links away while the node answers the requests it still holds. */
  leave(): Promise<void>;
  /** Removes the entry: nobody waits for an answer from this node after that. */
  withdraw(): Promise<void>;
} {
  let isLeaving = false;
  const announce = async (): Promise<void> => {
    share.follow(await hosts.count());
    await controlNodes.announce({ ...node, linkShare: share.value }, isLeaving);
  };
  const stop = repeatInBackground('node.announce', DIRECTORY_LIMITS.controlNodeTtlMs / 4, announce);
  return {
    async leave() {
      isLeaving = true;
      await announce();
    },
    async withdraw() {
      stop();
      await controlNodes.withdraw(node.nodeId);
    },
  };
}
