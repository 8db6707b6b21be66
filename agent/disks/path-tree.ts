/** Deeper paths count as their ancestor at this depth, which bounds the work of a comparison. */
const DEPTH_MAX = 128;

interface Node {
  isTaken: boolean;
  readonly children: Map<string, Node>;
}

const newNode = (): Node => ({ isTaken: false, children: new Map() });

/** @param path an absolute path within a disk; empty: its root */
const segmentsOf = (path: string): string[] => path.split('/', DEPTH_MAX + 1).slice(1);

/**
 * A set of paths on a disk: tells whether another path equals, contains or is below one of them.
 */
export class PathTree {
  readonly #root = newNode();

  add(path: string): void {
    let node = this.#root;
    for (const segment of segmentsOf(path)) {
      const child = node.children.get(segment) ?? newNode();
      node.children.set(segment, child);
      node = child;
    }
    node.isTaken = true;
  }

  /** True when the path, one of its parents, or anything beneath it was added. */
  overlaps(path: string): boolean {
    let node = this.#root;
    for (const segment of segmentsOf(path)) {
      if (node.isTaken) return true;
      const child = node.children.get(segment);
      if (child === undefined) return false;
      node = child;
    }
    return node.isTaken || node.children.size > 0;
  }
}
