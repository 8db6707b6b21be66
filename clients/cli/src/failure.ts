/** An error of the command line itself: one sentence, and where it can be helped, the next step. */
export class Failure extends Error {
  /** The next step, as the end of the sentence. */
  readonly next: string | undefined;

  constructor(message: string, next?: string) {
    super(message);
    this.next = next;
  }
}

/** The command line was wrong. */
export class UsageFailure extends Failure {}

/** Exit codes of the program's own. Commands that run others end with the code of what they ran. */
export const EXIT = {
  failure: 1,
  usage: 2,
  /** A search failed; as with grep, 1 says that nothing was found. */
  notSearched: 2,
  /** Berth itself failed where the exit code would be that of the remote command; as docker and env do. */
  notRun: 125,
} as const;
