import { repeatInBackground } from '../../shared/background.ts';
import type { ControlNode, ControlNodes } from '../../shared/directory/control-nodes.ts';
import { LIMITS } from '../../shared/limits.ts';

/** Keeps a node's entry in the directory fresh until it is withdrawn. */
export function announceNode(
  nodes: ControlNodes,
  node: ControlNode,
): {
  /** Keeps new agent links away while the node answers the requests it still holds. */
  leave(): Promise<void>;
  /** Removes the entry: nobody waits for an answer from this node after that. */
  withdraw(): Promise<void>;
} {
  let isLeaving = false;
  const announce = (): Promise<void> => nodes.announce(node, isLeaving);
  const stop = repeatInBackground('node.announce', LIMITS.controlNodeTtlMs / 4, announce);
  return {
    async leave() {
      isLeaving = true;
      await announce();
    },
    async withdraw() {
      stop();
      await nodes.withdraw(node.nodeId);
    },
  };
}
