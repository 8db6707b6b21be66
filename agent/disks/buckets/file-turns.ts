/** Work on files, one at a time for each inode. */
export class FileTurns {
  /** By inode, the end of the last work that was asked for. */
  readonly #last = new Map<bigint, Promise<void>>();

  /** Does the work unless other work on the file is under way or waits. @returns whether it did */
  async takeIfFree(inode: bigint, work: () => Promise<void>): Promise<boolean> {
    if (this.#last.has(inode)) return false;
    await this.take(inode, work);
    return true;
  }

  async take<T>(inode: bigint, work: () => Promise<T>): Promise<T> {
    const before = this.#last.get(inode);
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#last.set(inode, promise);
    await before;
    try {
      return await work();
    } finally {
      resolve();
      if (this.#last.get(inode) === promise) this.#last.delete(inode);
    }
  }
}
