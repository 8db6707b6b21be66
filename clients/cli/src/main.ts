/** `berth`: finds the command, loads it, and says in one sentence what went wrong. */
import { CommanderError } from '@commander-js/extra-typings';
import { EXIT } from './failure.ts';
import { commandTree } from './tree.ts';

/** The reader of our output may have seen enough: `berth disk ls | head`. */
function endQuietlyWithReader(): void {
  for (const stream of [process.stdout, process.stderr]) {
    stream.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EPIPE') process.exit(EXIT.failure);
      throw error;
    });
  }
}

async function run(argv: readonly string[]): Promise<void> {
  if (argv[0] === '__complete') {
    const { complete } = await import('./complete.ts');
    return complete(argv.slice(2)); // Behind `--`.
  }
  const program = await commandTree(argv[0] ?? '');
  if (argv.length === 0) program.outputHelp();
  else await program.parseAsync([...argv], { from: 'user' });
}

async function main(argv: readonly string[]): Promise<void> {
  endQuietlyWithReader();
  try {
    await run(argv);
  } catch (error) {
    // Help and version have been printed.
    if (error instanceof CommanderError && error.exitCode === 0) return;
    const { reportFailure } = await import('./report-failure.ts');
    process.exitCode = reportFailure(error, argv);
  }
}

await main(process.argv.slice(2));
