/** An error of the command line itself: one sentence, and where it can be helped, the next step. */
export class Failure extends Error {
  /** The next step, as the end of the sentence. */
  readonly next: string | undefined;
  /** For programs; one of the API's where there is one for it. */
  readonly code: string;

  constructor(message: string, next?: string, code = 'failed') {
    super(message);
    this.next = next;
    this.code = code;
  }
}

/** The command line was wrong. */
export class UsageFailure extends Failure {
  constructor(message: string, next?: string) {
    super(message, next, 'usage');
  }
}

/** There is nothing of the name that was given. */
export class NotFoundFailure extends Failure {
  constructor(message: string, next?: string) {
    super(message, next, 'not_found');
  }
}

/** Edited text was not saved, because of the cause; it is kept in a file. */
export class UnsavedFailure extends Error {
  readonly file: string;

  constructor(file: string, cause: unknown) {
    super('the text was not saved', { cause });
    this.file = file;
  }
}

/** Exit codes of the program's own. Commands that run others end with the code of what they ran. */
export const EXIT = {
  failure: 1,
  usage: 2,
  /** A search failed; as with grep, 1 says that nothing was found. */
  notSearched: 2,
  /**
   * Berth itself failed where the exit code would be that of the remote command; as docker and env
   * do.
   */
  notRun: 125,
} as const;
