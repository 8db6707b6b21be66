import { Failure } from './failure.ts';

/**
 * Asks the user at the terminal.
 * @param next what to add to the command line where nobody can be asked
 * @throws Failure unless the user agrees
 */
export async function confirm(message: string, next: string, refusal: string): Promise<void> {
  if (!process.stdin.isTTY || !process.stderr.isTTY) {
    throw new Failure('nobody can be asked here', next);
  }
  const clack = await import('@clack/prompts');
  const answer = await clack.confirm({ message, initialValue: false, output: process.stderr });
  if (answer !== true) throw new Failure(refusal);
}
