import { hkdfSync } from 'node:crypto';
import Type from 'typebox';
import { AppError } from '../errors.ts';
import {
  type JobEnvelope,
  type JobKind,
  type JobSender,
  parseJob,
  parseJobSender,
} from './jobs.ts';
import { type Ring, seal, toRing, unseal } from '../secrets.ts';
import { compile } from '../validate.ts';
import { parseJson } from '../json.ts';

const KEY_BYTES = 32;

const deriveKey = (secret: string): Buffer =>
  Buffer.from(hkdfSync('sha256', secret, '', 'berth job queue', KEY_BYTES));

/** A job as it lies in a queue. */
const SealedJob = Type.Object({ sealed: Type.String() });
export type SealedJob = Type.Static<typeof SealedJob>;
const checkSealed = compile(SealedJob);

/**
 * Seals jobs while they lie in a queue, because commands and environments are callers' secrets and
 * Redis writes them to its file. A sealed job opens only in its own queue and under its own id, so
 * whoever can write to Redis cannot make, move or change a job.
 */
export class JobSeal {
  readonly #keys: Ring<Buffer>;

  /**
   * @param clusterSecrets shared by control and agents; the keys are derived from them (RFC 5869)
   */
  constructor(clusterSecrets: Ring<string>) {
    this.#keys = toRing(clusterSecrets.map(deriveKey));
  }

  seal<K extends JobKind>(queue: string, job: JobEnvelope<K>): SealedJob {
    return { sealed: seal(this.#keys, JSON.stringify(job), contextOf(queue, job.id)) };
  }

  /**
   * @param id the id of the queue's entry
   * @throws AppError `bad_request` when the entry was not sealed for this queue and id with this
   *   key, or holds a job that this version does not know
   */
  open(queue: string, id: string, data: unknown): JobEnvelope {
    return parseJob(this.#unseal(queue, id, data));
  }

  /**
   * The node that waits for the answer to a job, also to one of another version.
   * @throws AppError `bad_request` when the entry was not sealed for this queue and id with this
   *   key
   */
  sender(queue: string, id: string, data: unknown): JobSender {
    return parseJobSender(this.#unseal(queue, id, data));
  }

  #unseal(queue: string, id: string, data: unknown): unknown {
    const { sealed } = checkSealed(data, 'job');
    let text: string;
    try {
      text = unseal(this.#keys, sealed, contextOf(queue, id));
    } catch (cause) {
      throw new AppError('bad_request', `job ${id} of queue ${queue} was not sealed by control`, {
        cause,
      });
    }
    return parseJson(text);
  }
}

const contextOf = (queue: string, id: string): string => `${queue} ${id}`;
