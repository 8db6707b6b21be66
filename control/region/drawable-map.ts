/** A map of which random entries can be drawn without a look at all of them. */
export class DrawableMap<K, V> {
  readonly #entries: { readonly key: K; readonly value: V }[] = [];
  readonly #places = new Map<K, number>();

  get size(): number {
    return this.#entries.length;
  }

  get(key: K): V | undefined {
    const place = this.#places.get(key);
    return place === undefined ? undefined : this.#entries[place]?.value;
  }

  set(key: K, value: V): void {
    const place = this.#places.get(key) ?? this.#entries.length;
    this.#entries[place] = { key, value };
    this.#places.set(key, place);
  }

  delete(key: K): void {
    const place = this.#places.get(key);
    if (place === undefined) return;
    this.#swap(place, this.#entries.length - 1);
    this.#entries.pop();
    this.#places.delete(key);
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
    for (let place = 0; place < this.#entries.length; place += 1) {
      this.#swap(place, place + Math.floor(Math.random() * (this.#entries.length - place)));
      const entry = this.#entries[place];
      if (entry !== undefined) yield [entry.key, entry.value];
    }
  }

  #swap(a: number, b: number): void {
    const [first, second] = [this.#entries[a], this.#entries[b]];
    if (first === undefined || second === undefined) return;
    this.#entries[a] = second;
    this.#entries[b] = first;
    this.#places.set(second.key, a);
    this.#places.set(first.key, b);
  }
}
