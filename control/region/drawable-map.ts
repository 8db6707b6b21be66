/** A map of which random entries can be drawn without a look at all of them. */
export class DrawableMap<K, V> {
  readonly #entries: { readonly key: K; readonly value: V }[] = [];
  readonly #indexes = new Map<K, number>();

  get size(): number {
    return this.#entries.length;
  }

  get(key: K): V | undefined {
    const index = this.#indexes.get(key);
    return index === undefined ? undefined : this.#entries[index]?.value;
  }

  set(key: K, value: V): void {
    const index = this.#indexes.get(key) ?? this.#entries.length;
    this.#entries[index] = { key, value };
    this.#indexes.set(key, index);
  }

  delete(key: K): void {
    const index = this.#indexes.get(key);
    if (index === undefined) return;
    this.#swap(index, this.#entries.length - 1);
    this.#entries.pop();
    this.#indexes.delete(key);
  }

  /** In no order that means anything. */
  *entries(): IteratorObject<readonly [K, V], undefined> {
    for (const { key, value } of this.#entries) yield [key, value];
  }

  /**
   * All entries, each once, in an order that is new each time; the first ones cost nothing for the
   * others. Take what is needed at once: the map must not change meanwhile.
   */
  *drawn(): IteratorObject<readonly [K, V], undefined> {
    for (let index = 0; index < this.#entries.length; index += 1) {
      this.#swap(index, index + Math.floor(Math.random() * (this.#entries.length - index)));
      const entry = this.#entries[index];
      if (entry !== undefined) yield [entry.key, entry.value];
    }
  }

  #swap(a: number, b: number): void {
    const [first, second] = [this.#entries[a], this.#entries[b]];
    if (first === undefined || second === undefined) return;
    this.#entries[a] = second;
    this.#entries[b] = first;
    this.#indexes.set(second.key, a);
    this.#indexes.set(first.key, b);
  }
}
