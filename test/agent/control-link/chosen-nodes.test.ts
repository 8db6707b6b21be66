import test from 'ava';
import { chooseNodes } from '../../../agent/control-link/chosen-nodes.ts';
import type { ControlNode } from '../../../shared/directory/control-nodes.ts';
import { newHostId, newNodeId } from '../../../shared/ids.ts';
import { LINK_LIMITS } from '../../../agent/control-link/limits.ts';

const nodesWith = (count: number, linkShare: number): ControlNode[] =>
  Array.from({ length: count }, () => ({ nodeId: newNodeId(), linkUrl: 'ws://node', linkShare }));

const hosts = Array.from({ length: 2000 }, newHostId);

test('a host links to every node that wants all hosts', (t) => {
  const nodes = nodesWith(7, 1);
  t.is(chooseNodes(newHostId(), nodes).size, nodes.length);
});

test('each node gets its share of the hosts, and each host has some nodes', (t) => {
  const nodes = nodesWith(20, 0.25);
  const counts = new Map(nodes.map(({ nodeId }) => [nodeId, 0]));
  for (const hostId of hosts) {
    const chosen = chooseNodes(hostId, nodes);
    t.true(chosen.size >= LINK_LIMITS.linksPerHostMin);
    for (const nodeId of chosen) counts.set(nodeId, (counts.get(nodeId) ?? 0) + 1);
  }
  // 500 are expected of 2000, with a standard deviation of 19: this is seven of them, and the two
  // that each host has anyway add hardly any.
  for (const count of counts.values()) t.true(Math.abs(count - 500) < 150, `${count} hosts`);
});

test('a host has some nodes even when none wants it', (t) => {
  const chosen = chooseNodes(newHostId(), nodesWith(9, 0));
  t.is(chosen.size, LINK_LIMITS.linksPerHostMin);
  t.is(chooseNodes(newHostId(), nodesWith(1, 0)).size, 1);
  t.is(chooseNodes(newHostId(), []).size, 0);
});

test('a node that leaves moves no link but its own', (t) => {
  const nodes = nodesWith(10, 0.3);
  const [gone, ...rest] = nodes;
  for (const hostId of hosts) {
    const [before, after] = [chooseNodes(hostId, nodes), chooseNodes(hostId, rest)];
    const kept = [...before].filter((nodeId) => nodeId !== gone?.nodeId);
    t.true(kept.every((nodeId) => after.has(nodeId)));
    // A host that has too few without it takes another one.
    t.true(after.size === kept.length || after.size === LINK_LIMITS.linksPerHostMin);
  }
});
