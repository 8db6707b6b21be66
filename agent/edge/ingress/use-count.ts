import type { PortRef } from './messages.ts';

type SandboxRef = Pick<PortRef, 'accountId' | 'sandboxId'>;

interface Use {
  readonly ref: SandboxRef;
  count: number;
  timer: NodeJS.Timeout | undefined;
}

/** How long a sandbox counts as used after its last request, so that not each one is told. */
const LINGER_MS = 500;

/**
 * Counts the requests under way to each sandbox, and reports the first to begin and the last to
 * end.
 */
export class UseCount {
  readonly #tell: (ref: SandboxRef, inUse: boolean) => void;
  readonly #uses = new Map<string, Use>();

  constructor(tell: (ref: SandboxRef, inUse: boolean) => void) {
    this.#tell = tell;
  }

  /** A request begins. @returns a function that ends it; call it once */
  begin({ accountId, sandboxId }: SandboxRef): () => void {
    let use = this.#uses.get(sandboxId);
    if (use === undefined) {
      use = { ref: { accountId, sandboxId }, count: 0, timer: undefined };
      this.#uses.set(sandboxId, use);
      this.#tell(use.ref, true);
    }
    const { timer } = use;
    use.timer = undefined;
    clearTimeout(timer);
    use.count += 1;
    return () => this.#end(use);
  }

  #end(use: Use): void {
    use.count -= 1;
    if (use.count > 0) return;
    use.timer = setTimeout(() => {
      this.#uses.delete(use.ref.sandboxId);
      this.#tell(use.ref, false);
    }, LINGER_MS);
  }
}
