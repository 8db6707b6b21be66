import { runInBackground } from '../../../shared/background.ts';

/** The requests that are being answered, for which a shutdown waits. */
export class RequestsUnderWay {
  readonly #answers = new Set<Promise<void>>();

  /** Never throws: a failure of the answer is reported. */
  add(answer: Promise<void>): void {
    this.#answers.add(answer);
    runInBackground('request.answer', () => answer.finally(() => this.#answers.delete(answer)));
  }

  /** Settles when the present ones have ended. */
  async ended(): Promise<void> {
    await Promise.all(this.#answers);
  }
}
