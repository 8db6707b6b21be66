import type { Middleware } from 'koa';
import type { Activity } from '../../../shared/directory/activity.ts';
import { toError } from '../../../shared/errors.ts';
import { clientAddress } from '../../../shared/http/client-address.ts';
import { diskIdPattern, newEventId } from '../../../shared/ids.ts';
import { LIMITS } from '../../../shared/limits.ts';
import type { Logger } from '../../../shared/log.ts';
import type { ActivityEvent, ActivityLevel } from '../../../shared/schemas/activity.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import type { AuditFile } from '../audit-file.ts';
import type { RefusedStrangers } from '../refused-strangers.ts';
import { statusOf, toCallerError, toWaitableError } from '../error-status.ts';
import type { ChangingRoute } from '../route.ts';
import type { RequestContext, RequestState } from './request-state.ts';

/** Where changes are written down. */
export interface AuditLogs {
  readonly activity: Activity;
  /** Undefined: there is no file. */
  readonly file: AuditFile | undefined;
  /** Writes to the file, too. */
  readonly strangers: RefusedStrangers | undefined;
  /**
   * Told of each event of an account, unless it was answered with 429 or `insufficient_scope`;
   * never throws.
   */
  readonly announce: (event: ActivityEvent) => Promise<void>;
  /** Whose word about the address of a caller is believed. */
  readonly trustedProxies: readonly string[];
  readonly log: Logger;
}

/** Names of things that handlers note for the audit. Nothing else of a request is kept. */
const NAMES = [
  ...['diskIds', 'sandboxId', 'childId', 'snapshotId', 'imageId', 'execId', 'exitCode'],
  ...['apiKeyId', 'userIdentifier', 'portTokenId', 'webhookId', 'hostName', 'invitationId'],
] as const;
const PARAMETER_LENGTH_MAX = 100;

const aboutDisk = new RegExp(diskIdPattern, 'u');

interface Outcome {
  readonly outcome: 'done' | 'refused' | 'failed';
  readonly level: ActivityLevel;
  readonly status: number;
  readonly code?: string;
}

function outcomeOf(status: number, code?: string): Outcome {
  const shown = { status, ...(code === undefined ? {} : { code }) };
  if (status < 400) return { outcome: 'done', level: 'info', ...shown };
  // 499: the caller hung up, so what was begun was broken off.
  if (status < 499) return { outcome: 'refused', level: 'warning', ...shown };
  return { outcome: 'failed', level: 'error', ...shown };
}

function entryOf(
  {
    ctx,
    trustedProxies,
  }: { readonly ctx: RequestContext; readonly trustedProxies: readonly string[] },
  { event, operationId, path }: ChangingRoute,
  { level, ...outcome }: Outcome,
): Omit<ActivityEvent, 'accountId'> & { readonly accountId?: string } {
  const { caller, notes, requestId } = ctx.state;
  const given = Object.entries((Reflect.get(ctx, 'params') ?? {}) as Record<string, string>);
  const params = Object.fromEntries(
    given.map(([name, text]) => [name, text.slice(0, PARAMETER_LENGTH_MAX)]),
  );
  const named: Record<string, unknown> = {};
  for (const name of NAMES) if (name in notes) named[name] = notes[name];
  const diskId = path.startsWith('/api/disks/{id}') ? params['id'] : notes['diskId'];
  const isReplay = ctx.response.get('idempotency-replayed') === 'true';
  return {
    eventId: newEventId(),
    ...(caller === undefined ? {} : { accountId: caller.accountId }),
    ...(typeof diskId === 'string' && aboutDisk.test(diskId) ? { diskId } : {}),
    eventType: event,
    level,
    createdAt: new Date().toISOString(),
    details: {
      operation: operationId,
      ...outcome,
      ...(caller === undefined ? {} : { keyId: caller.keyId }),
      address: clientAddress(ctx.req, trustedProxies),
      requestId,
      ...(isReplay ? { replayed: true } : {}),
      params,
      ...named,
    },
  };
}

/** Neither log may hold up an answer for long, nor turn a change that was made into a failure. */
async function write(
  { activity, file, announce, log }: AuditLogs,
  entry: ReturnType<typeof entryOf>,
): Promise<void> {
  const { accountId, details } = entry;
  // A caller who is to send less, or whose key may do nothing of the kind, must not fill the queue
  // of webhooks with that.
  const isAnnounced = details['status'] !== 429 && details['code'] !== 'insufficient_scope';
  const written = await Promise.allSettled([
    file?.append(JSON.stringify(entry)),
    accountId === undefined ? undefined : activity.record({ ...entry, accountId }),
    accountId === undefined || !isAnnounced ? undefined : announce({ ...entry, accountId }),
  ]);
  for (const result of written) {
    if (result.status === 'fulfilled') continue;
    log.error({ err: toError(result.reason), eventId: entry.eventId }, 'audit:entryLost');
  }
}

/**
 * Writes down every call that changes something, whatever became of it: one entry for each, before
 * its answer, and sums of those that failed without a key (docs/accounts.md, Audit).
 */
export function audited(route: ChangingRoute, logs: AuditLogs): Middleware<RequestState> {
  const { trustedProxies } = logs;
  return async (ctx, next) => {
    const record = async (outcome: Outcome): Promise<void> => {
      // A caller without a key has a line of its own only for a change: a host that has joined.
      if (ctx.state.caller === undefined && outcome.outcome !== 'done') {
        const address = clientAddress(ctx.req, trustedProxies);
        logs.strangers?.count({ eventType: route.event, status: outcome.status, address });
        return;
      }
      const written = write(logs, entryOf({ ctx, trustedProxies }, route, outcome));
      if (await settledWithin(written, LIMITS.auditMsMax)) return;
      logs.log.error({ requestId: ctx.state.requestId }, 'audit:entryLate');
    };
    try {
      await next();
    } catch (thrown) {
      const known = toCallerError(thrown);
      const { code } = ctx.state.bringsUpSandbox ? toWaitableError(known) : known;
      await record(outcomeOf(statusOf[code], code));
      throw thrown;
    }
    await record(outcomeOf(ctx.status));
  };
}
