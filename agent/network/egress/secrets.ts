import type { Brokering } from '../../../shared/network/egress-rules.ts';
import { indexPatterns, type PatternIndex, redactText, Redactor } from './redactor.ts';
import { secretPatterns } from './secret-patterns.ts';

/** The secrets that one rule adds and that must not come back to a guest. */
export class Secrets {
  readonly #index: PatternIndex | undefined;

  constructor(brokering: Brokering) {
    this.#index = indexPatterns(secretPatterns(brokering));
  }

  /** A stream that masks them; undefined when there are none. */
  newRedactor(): Redactor | undefined {
    return this.#index === undefined ? undefined : new Redactor(this.#index);
  }

  /** Masks them in a header. @param text in latin1 */
  redact(text: string): string {
    return redactText(this.#index, text);
  }
}

/** The secrets of each rule, computed when they are first needed. */
export class SecretsOfRules {
  readonly #known = new WeakMap<Brokering, Secrets>();

  of(brokering: Brokering): Secrets {
    const known = this.#known.get(brokering) ?? new Secrets(brokering);
    this.#known.set(brokering, known);
    return known;
  }
}
