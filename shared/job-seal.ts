import { hkdfSync } from 'node:crypto';
import Type from 'typebox';
import { AppError } from './errors.ts';
import { type JobEnvelope, parseJob } from './jobs.ts';
import { seal, unseal } from './secrets.ts';
import { compile } from './validate.ts';
import { parseJson } from './json.ts';

const KEY_BYTES = 32;

/** A job as its queue holds it. */
const SealedJob = Type.Object({ sealed: Type.String() });
export type SealedJob = Type.Static<typeof SealedJob>;
const checkSealed = compile(SealedJob);

/**
 * Seals jobs while they lie in a queue: commands and environments are secrets of callers, and Redis
 * keeps them in its file. A sealed job opens only in its own queue and under its own id, so that
 * whoever can write to Redis can neither make a job nor move or change one.
 */
export class JobSeal {
  readonly #key: Buffer;

  /** @param clusterSecret what control and agents share; the key is derived from it (RFC 5869) */
  constructor(clusterSecret: string) {
    this.#key = Buffer.from(hkdfSync('sha256', clusterSecret, '', 'berth job queue', KEY_BYTES));
  }

  seal(queue: string, job: JobEnvelope): SealedJob {
    return { sealed: seal(this.#key, JSON.stringify(job), contextOf(queue, job.id)) };
  }

  /**
   * @param id of the queue's entry
   * @throws AppError `bad_request` when the entry was not made for this place, or by somebody else
   */
  open(queue: string, id: string, data: unknown): JobEnvelope {
    const { sealed } = checkSealed(data, 'job');
    let text: string;
    try {
      text = unseal(this.#key, sealed, contextOf(queue, id));
    } catch (cause) {
      throw new AppError('bad_request', `job ${id} of queue ${queue} was not sealed by control`, {
        cause,
      });
    }
    return parseJob(parseJson(text));
  }
}

const contextOf = (queue: string, id: string): string => `${queue} ${id}`;
