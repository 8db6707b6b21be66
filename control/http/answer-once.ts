import { setTimeout as sleep } from 'node:timers/promises';
import type { Directory } from '../../shared/directory/directory.ts';
import type { KeyedRequest } from '../../shared/directory/idempotency-keys.ts';
import { AppError, type ErrorCode, errorCodes } from '../../shared/errors.ts';
import type { FairShares, Permit } from '../../shared/fair-shares.ts';
import { DIRECTORY_LIMITS } from '../../shared/directory/limits.ts';
import { HTTP_LIMITS } from './limits.ts';
import { seal, sha256, tryUnseal } from '../../shared/secrets.ts';
import type { ClusterConfig } from '../../shared/settings/cluster-config.ts';
import type { Deps, ServiceSettings } from '../region/deps.ts';
import { statusOf, toCallerError } from './error-status.ts';
import { textLength } from './long-answer.ts';
import type { Reply } from './route.ts';
import { parseJson } from '../../shared/json.ts';
import { HOUR_MS } from '../../shared/units.ts';

export interface KeyedCall {
  readonly accountId: string;
  /** The caller's `Idempotency-Key`. */
  readonly key: string;
  /** Differs when the same key comes with another path or body. */
  readonly fingerprint: string;
  readonly requestId: string;
  /** Aborted when the caller hangs up; only the wait for another request's answer ends then. */
  readonly signal: AbortSignal;
  /** Permits for requests of this node that wait for another request's answer. */
  readonly waits: FairShares;
}

/** Parts of a control node that this works with. */
export interface KeyedDeps extends Pick<Deps, 'nodeId'> {
  readonly config: Pick<ServiceSettings, 'execTimeoutMs'> & {
    readonly cluster: Pick<ClusterConfig, 'encryptionKeys' | 'region'>;
  };
  readonly directory: Pick<Directory, 'controlNodes' | 'idempotencyKeys'>;
}

type Kept =
  | { readonly kind: 'reply'; readonly reply: Reply }
  | { readonly kind: 'error'; readonly code: ErrorCode; readonly message: string };

// How long a request that waits pauses between two looks: a part of the time that it has waited.
const POLL_PART = 0.1;
const POLL_EVERY_MS_MIN = 100;
const POLL_EVERY_MS_MAX = 1_000;
const NODE_ASKED_EVERY_MS = 1_000;
/** How long a request may be at work beyond its command's own time. */
const RUNNING_GRACE_MS = 60_000;
/** After an outage of Redis control nodes need a moment to announce themselves again. */
const NODE_GONE_AFTER_MS = DIRECTORY_LIMITS.controlNodeTtlMs / 2;

/**
 * Errors after which something may have been done; after all others the request may be repeated.
 */
const KEPT_ERRORS: ReadonlySet<ErrorCode> = new Set([
  'outcome_unknown',
  'timeout',
  'delegation_revoked',
  'internal_server_error',
]);

/**
 * Runs a request at most once for each key of an account; whoever repeats it within 24 hours gets
 * the first answer, waiting for it if need be.
 * @throws AppError what `run` throws, or `idempotency_conflict` (the key came with another
 *   request), `idempotency_answer_lost` (too large to keep, or evicted by newer answers),
 *   `outcome_unknown` (the first request was cut off: its control node is gone, or should have been
 *   done long ago), `directory_full` (too many keys), `rate_limited` or `unavailable` (too many
 *   requests wait for others)
 */
export async function answerOnce(
  deps: KeyedDeps,
  call: KeyedCall,
  run: () => Promise<Reply>,
): Promise<{ reply: Reply; replayed: boolean }> {
  const keyHash = sha256(call.key);
  const { idempotencyKeys } = deps.directory;
  const request: KeyedRequest = {
    owner: call.requestId,
    nodeId: deps.nodeId,
    region: deps.config.cluster.region,
    fingerprint: call.fingerprint,
    runningUntil: Date.now() + deps.config.execTimeoutMs + RUNNING_GRACE_MS,
  };
  const { accountId } = call;
  const first = await idempotencyKeys.claim(
    accountId,
    keyHash,
    request,
    HTTP_LIMITS.idempotencyTtlMs,
  );
  if (first === 'full') {
    throw new AppError(
      'directory_full',
      `too many Idempotency-Keys were used within ${HTTP_LIMITS.idempotencyTtlMs / HOUR_MS} hours; send none, or try again later`,
    );
  }
  if (first !== 'claimed') {
    if (first.fingerprint !== call.fingerprint) {
      throw new AppError('idempotency_conflict', 'this Idempotency-Key came with another request');
    }
    return { reply: await replay(deps, call, keyHash, first), replayed: true };
  }
  try {
    const reply = await run();
    await keep(deps, call, keyHash, request, { kind: 'reply', reply });
    return { reply, replayed: false };
  } catch (thrown) {
    const { code, message } = toCallerError(thrown);
    if (KEPT_ERRORS.has(code)) {
      await keep(deps, call, keyHash, request, { kind: 'error', code, message });
    } else {
      await idempotencyKeys.release(accountId, keyHash, call.requestId).catch(() => undefined);
    }
    throw thrown;
  }
}

const sealContext = (accountId: string, keyHash: string): string => `${accountId} ${keyHash}`;

/** The answer may hold a secret that is shown once, so it is kept sealed. */
async function keep(
  deps: KeyedDeps,
  { accountId }: KeyedCall,
  keyHash: string,
  request: KeyedRequest,
  kept: Kept,
): Promise<void> {
  const data = kept.kind === 'reply' && 'data' in kept.reply ? kept.reply.data : undefined;
  // Long output is not rendered to find out that it is too long.
  const text = textLength(data) > HTTP_LIMITS.idempotentAnswerBytesMax ? '' : JSON.stringify(kept);
  const keys = deps.config.cluster.encryptionKeys;
  const status = kept.kind === 'reply' ? kept.reply.status : statusOf[kept.code];
  const isKept = text !== '' && Buffer.byteLength(text) <= HTTP_LIMITS.idempotentAnswerBytesMax;
  const answer = isKept ? { answer: seal(keys, text, sealContext(accountId, keyHash)) } : {};
  const finished = { ...request, status, ...answer };
  await deps.directory.idempotencyKeys
    .finish(accountId, keyHash, finished, HTTP_LIMITS.idempotencyTtlMs)
    // The work is done, so its caller gets the answer although it could not be kept.
    .catch(() => undefined);
}

function takePermit({ waits, accountId }: KeyedCall): Permit {
  const permit = waits.take([accountId]);
  if (permit !== undefined) return permit;
  const waiting = 'requests wait for the answers to others with the same Idempotency-Key';
  if (waits.isFull) throw new AppError('unavailable', `too many ${waiting}; try again`);
  throw new AppError('rate_limited', `too many of the account's ${waiting}; try again`);
}

/** @returns undefined when the first request has given the key up */
async function untilAnswered(
  { directory: { controlNodes, idempotencyKeys } }: KeyedDeps,
  call: KeyedCall,
  keyHash: string,
  first: KeyedRequest,
): Promise<KeyedRequest | undefined> {
  using _permit = takePermit(call);
  const begunAt = performance.now();
  let present: KeyedRequest | undefined = first;
  let nodeSeenAt = begunAt;
  let nodeAskedAt = Number.NEGATIVE_INFINITY;
  while (present !== undefined && present.status === undefined) {
    if (performance.now() - nodeAskedAt >= NODE_ASKED_EVERY_MS) {
      nodeAskedAt = performance.now();
      if (await controlNodes.isAlive(present)) nodeSeenAt = performance.now();
    }
    const isNodeGone = performance.now() - nodeSeenAt > NODE_GONE_AFTER_MS;
    if (isNodeGone || Date.now() > present.runningUntil) {
      const message = 'the first request with this key was cut off; it may have been done';
      throw new AppError('outcome_unknown', message);
    }
    const pauseMs = (performance.now() - begunAt) * POLL_PART;
    await sleep(Math.min(Math.max(pauseMs, POLL_EVERY_MS_MIN), POLL_EVERY_MS_MAX));
    if (call.signal.aborted) throw new AppError('cancelled', 'the caller hung up');
    present = await idempotencyKeys.get(call.accountId, keyHash);
  }
  return present;
}

async function replay(
  deps: KeyedDeps,
  call: KeyedCall,
  keyHash: string,
  first: KeyedRequest,
): Promise<Reply> {
  const isAnswered = first.status !== undefined;
  const present = isAnswered ? first : await untilAnswered(deps, call, keyHash, first);
  if (present === undefined) {
    throw new AppError('unavailable', 'the first request with this key did nothing; try again');
  }
  if (present.answer === undefined) {
    throw answerLost(present.status, 'its answer was not kept');
  }
  const keys = deps.config.cluster.encryptionKeys;
  const kept = tryUnseal(keys, present.answer, sealContext(call.accountId, keyHash));
  if (kept === undefined)
    throw answerLost(present.status, 'the key that sealed its answer is gone');
  return toReply(parseJson(kept.text) as Kept);
}

const answerLost = (status: number | undefined, why: string): AppError =>
  new AppError('idempotency_answer_lost', `this was done once, with status ${status}; ${why}`);

function toReply(kept: Kept): Reply {
  switch (kept.kind) {
    case 'reply': {
      return kept.reply;
    }
    case 'error': {
      const known = errorCodes.includes(kept.code);
      throw new AppError(known ? kept.code : 'internal_server_error', kept.message);
    }
  }
}
