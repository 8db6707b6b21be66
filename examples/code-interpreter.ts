/**
 * A code interpreter: one Python that keeps its variables from call to call, in a sandbox that is
 * paused while nobody asks. Language models get this as their tool `run_python`.
 */
import type { Berth, OutputChunk, Process, Sandbox } from '@berth/sdk';

/**
 * Reads a program, ended by a line with NUL alone, runs it, and answers with a line of the same.
 */
const REPL = `
import sys, traceback
scope = {}
while True:
    lines = []
    for line in sys.stdin:
        if line == "\\0\\n": break
        lines.append(line)
    else: break
    try: exec(compile("".join(lines), "<cell>", "exec"), scope)
    except BaseException: traceback.print_exc(file=sys.stdout)
    print("\\0", flush=True)
`;

export class CodeInterpreter implements AsyncDisposable {
  readonly #sandbox: Sandbox;
  readonly #python: Process;
  readonly #output: AsyncGenerator<OutputChunk, void>;
  readonly #decoder = new TextDecoder();

  private constructor(sandbox: Sandbox, python: Process) {
    this.#sandbox = sandbox;
    this.#python = python;
    this.#output = python[Symbol.asyncIterator]();
  }

  static async create(berth: Berth): Promise<CodeInterpreter> {
    // Nothing that runs in it reaches the network, and after a minute of rest it costs nothing.
    const sandbox = await berth.sandboxes.create({
      mem_size_mib: 256,
      network: { egress: { default: 'deny' } },
    });
    return new CodeInterpreter(
      sandbox,
      await sandbox.start('python3 -c "$REPL"', { env: { REPL } }),
    );
  }

  /** Runs a piece of Python. @returns what it printed */
  async run(program: string): Promise<string> {
    if ((await this.#sandbox.refresh()).status === 'paused') await this.#sandbox.resume();
    await this.#python.write(`${program}\n\0\n`);
    let text = '';
    while (!text.endsWith('\0\n')) {
      const next = await this.#output.next();
      if (next.done === true) throw new Error(`Python has ended: ${text}`);
      text += this.#decoder.decode(next.value.bytes, { stream: true });
    }
    return text.slice(0, -2);
  }

  /** Variables, open files and imports stay as they are, and cost no memory. */
  async rest(): Promise<void> {
    await this.#sandbox.pause();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#python.detach();
    await this.#sandbox.delete();
  }
}
