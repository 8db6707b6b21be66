import type { SlotNamespaces } from '../../agent/network/slots/slot-namespace.ts';

/** Network slots of which only the numbers are there. */
export class InMemoryNamespaces implements SlotNamespaces {
  readonly present = new Set<number>();
  /** A gate at which a test may delay or fail a removal. */
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
