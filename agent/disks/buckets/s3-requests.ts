import type { Agent as HttpAgent } from 'node:http';
import type { Agent as HttpsAgent } from 'node:https';
import type { NodeHttpHandlerOptions } from '@smithy/node-http-handler';
import { DISK_LIMITS } from '../limits.ts';
import { BoundedAnswers } from './bounded-answers.ts';

interface Agents {
  readonly httpAgent: HttpAgent;
  readonly httpsAgent: HttpsAgent;
}

/** How long storage may be silent, in ms. */
interface Patience {
  readonly silenceMs: number;
  /** When it puts an object together, or copies one, before it answers. */
  readonly workMs: number;
}

const PATIENCE: Patience = {
  silenceMs: DISK_LIMITS.bucketSilenceMsMax,
  workMs: DISK_LIMITS.bucketWorkMsMax,
};

type Handle = BoundedAnswers['handle'];

const silentFor = (agents: Agents, silenceMs: number): NodeHttpHandlerOptions => ({
  connectionTimeout: DISK_LIMITS.bucketConnectMsMax,
  socketTimeout: silenceMs,
  requestTimeout: silenceMs,
  throwOnRequestTimeout: true,
  ...agents,
});

/**
 * Completing an upload "could take several minutes" (S3 API, CompleteMultipartUpload), as a copy
 * can.
 */
const isLongWork = ({ method, query, headers }: Parameters<Handle>[0]): boolean =>
  (method === 'POST' && query['uploadId'] !== undefined) ||
  headers['x-amz-copy-source'] !== undefined;

/** Sends the requests of the SDK, and gives up those whose storage is silent for too long. */
export class S3Requests extends BoundedAnswers {
  readonly #longWork: BoundedAnswers;

  constructor(agents: Agents, { silenceMs, workMs } = PATIENCE) {
    super(silentFor(agents, silenceMs));
    this.#longWork = new BoundedAnswers(silentFor(agents, workMs));
  }

  override async handle(...[request, options]: Parameters<Handle>): ReturnType<Handle> {
    return isLongWork(request)
      ? this.#longWork.handle(request, options)
      : super.handle(request, options);
  }
}
