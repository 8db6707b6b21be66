import type { SlotNamespaces } from '../../agent/network/slot-namespace.ts';

/** Network slots of which only the numbers are there. */
export class InMemoryNamespaces implements SlotNamespaces {
  readonly present = new Set<number>();
  /** What a test may have a removal wait or fail at. */
  removing: (index: number) => Promise<void> = () => Promise.resolve();

  async list(): Promise<number[]> {
    return [...this.present];
  }

  async make({ index }: { readonly index: number }): Promise<void> {
    if (this.present.has(index)) throw new Error(`slot ${index} is there already`);
    this.present.add(index);
  }

  async renew({ index }: { readonly index: number }): Promise<boolean> {
    return this.present.has(index);
  }

  async remove({ index }: { readonly index: number }): Promise<void> {
    await this.removing(index);
    this.present.delete(index);
  }
}
