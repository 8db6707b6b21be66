import { AppError } from '../../shared/errors.ts';
import { FairShares, type Permit } from '../../shared/fair-shares.ts';
import { HTTP_LIMITS } from './limits.ts';

/** The bytes that a request's body takes here. Disposing them gives them back. */
export interface HeldBody extends Disposable {
  /**
   * Call it before so many bytes in all are kept.
   * @throws AppError `rate_limited`, `unavailable`
   */
  growTo(bytes: number): void;
}

/**
 * Bounds the memory that the bodies of requests take together, in fair shares of accounts. The
 * first bytes of each body are not counted: the number of connections bounds them.
 */
export class BodyShares {
  readonly #pieces: FairShares;

  constructor(piecesMax: number = HTTP_LIMITS.bodyPiecesPerNodeMax) {
    this.#pieces = new FairShares(piecesMax);
  }

  /** For one request; nothing is held before it grows. */
  begin(accountId: string): HeldBody {
    const held: Permit[] = [];
    return {
      growTo: (bytes) => {
        const wanted = Math.ceil(
          (bytes - HTTP_LIMITS.bodyUncountedBytesMax) / HTTP_LIMITS.bodyPieceBytes,
        );
        while (held.length < wanted) held.push(this.#take(accountId));
      },
      [Symbol.dispose]: () => {
        for (const piece of held.splice(0)) piece[Symbol.dispose]();
      },
    };
  }

  #take(accountId: string): Permit {
    const piece = this.#pieces.take([accountId]);
    if (piece !== undefined) return piece;
    if (this.#pieces.isFull) {
      throw new AppError('unavailable', 'too many large bodies are under way; try again');
    }
    throw new AppError(
      'rate_limited',
      'the account has too many large bodies under way at once; try again',
    );
  }
}
