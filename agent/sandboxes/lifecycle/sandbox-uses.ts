import type { JournalledSandbox } from './journalled-sandbox.ts';

/** Ends a use that lasts; only the first call counts. */
type EndUse = () => void;

/**
 * The kinds of use of a sandbox. Its idle limit counts the time since the last of them. A new limit
 * and a new network policy count as well, in the write that journals them. Nothing else does:
 * neither reading its record, output, usage or list of processes, nor a process in it without a
 * client.
 */
export class SandboxUses {
  readonly #sandbox: Pick<JournalledSandbox, 'touch' | 'hold'>;

  constructor(sandbox: Pick<JournalledSandbox, 'touch' | 'hold'>) {
    this.#sandbox = sandbox;
  }

  /* Uses of a moment. */

  /** An action that its state allows, also one that has nothing to do. */
  action(): void {
    this.#sandbox.touch();
  }

  fork(): void {
    this.#sandbox.touch();
  }

  snapshot(): void {
    this.#sandbox.touch();
  }

  command(): void {
    this.#sandbox.touch();
  }

  /** A client asks for the sandbox's processes or files. */
  connection(): void {
    this.#sandbox.touch();
  }

  /** A client writes to a process. */
  input(): void {
    this.#sandbox.touch();
  }

  /* Uses that last: the sandbox is not idle until they end. */

  runningCommand(): EndUse {
    return this.#sandbox.hold();
  }

  /** A client is attached to a process. */
  attachedClient(): EndUse {
    return this.#sandbox.hold();
  }

  /** A file is read or written, or a directory watched. */
  fileRequest(): EndUse {
    return this.#sandbox.hold();
  }

  /** A request or connection to one of its ports. */
  portTraffic(): EndUse {
    return this.#sandbox.hold();
  }
}
