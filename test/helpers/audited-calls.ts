/* The audit entries that the calls of a test must have left, by the route table. */
import { readFile } from 'node:fs/promises';
import type { Route } from '../../control/http/route.ts';
import { routes } from '../../control/routes.ts';
import { DIRECTORY_LIMITS } from '../../shared/directory/limits.ts';
import { SCHEMA_LIMITS } from '../../shared/schemas/limits.ts';
import type { ActivityEvent } from '../../shared/schemas/activity.ts';
import { ApiClient, type SeenReply } from './api.ts';
import type { Stack } from './stack.ts';

/**
 * Whether a call of it has to be in the log: decided without its `event`, which could be missing.
 */
export const isChange = ({ method, scope }: Route): boolean => method !== 'get' && scope !== 'read';

export async function readAuditLog(file: string): Promise<ActivityEvent[]> {
  const lines = (await readFile(file, 'utf8')).split('\n').filter((line) => line !== '');
  return lines.map((line) => JSON.parse(line) as ActivityEvent);
}

const outcomeOf = (status: number): string => {
  if (status < 400) return 'done';
  return status < 500 ? 'refused' : 'failed';
};

/** The log and the activity may have calls of the same moment in another order. */
const ORDER_SLACK = 100;

/** Entries of the log that the activity of their account must still have. */
function keptOf(entries: readonly ActivityEvent[]): Set<string> {
  const byAccount = Map.groupBy(entries, ({ accountId }) => accountId);
  const kept = [...byAccount.values()].flatMap((all) => {
    const { warning = [], other = [] } = Object.groupBy(all, ({ level }) =>
      level === 'warning' ? level : 'other',
    );
    return [
      ...other.slice(-(DIRECTORY_LIMITS.activityPerAccountMax - ORDER_SLACK)),
      ...warning.slice(-(DIRECTORY_LIMITS.refusalsPerAccountMax - ORDER_SLACK)),
    ];
  });
  return new Set(kept.map(({ eventId }) => eventId));
}

/** Remembers each call of the API that any `ApiClient` of this process makes. */
export class AuditedCalls {
  readonly #seen: SeenReply[] = [];

  constructor() {
    ApiClient.onReply = (reply) => this.#seen.push(reply);
  }

  /** The operations that changed something at least once. */
  get succeeded(): Set<string> {
    return new Set(
      this.#seen.filter(({ status }) => status < 400).map(({ operationId }) => operationId),
    );
  }

  /**
   * Compares the calls with the audit log of the stack's control node, and with the activity of the
   * accounts, of which Redis keeps the latest entries.
   * @returns what is wrong, one line each
   */
  async findFaults(stack: Stack): Promise<string[]> {
    const log = await readAuditLog(stack.environment['AUDIT_LOG'] ?? '');
    const logged = Map.groupBy(log, ({ details }) => String(details['requestId']));
    const kept = keptOf(log);
    const { activity } = await stack.openDirectory();
    const accounts = new Set(log.map(({ accountId }) => accountId));
    const listed = new Set<string>();
    for (const accountId of accounts) {
      if (accountId === undefined) continue; // The call was nobody's: the key was wrong.
      let cursor: string | undefined;
      do {
        const from = cursor === undefined ? {} : { cursor };
        const page = await activity.list(accountId, { limit: SCHEMA_LIMITS.pageSizeMax, ...from });
        for (const { eventId } of page.items) listed.add(eventId);
        cursor = page.nextCursor;
      } while (cursor !== undefined);
    }
    return this.#seen.flatMap((reply) => {
      const route = routes.find(({ operationId }) => operationId === reply.operationId);
      const entries = logged.get(reply.requestId) ?? [];
      const problem =
        route === undefined ? 'is no route' : whatIsWrong({ route, reply, entries, kept, listed });
      return problem === undefined ? [] : [`${reply.operationId} ${reply.status}: ${problem}`];
    });
  }
}

function whatIsWrong({
  route,
  reply: { status, code },
  entries,
  kept,
  listed,
}: {
  readonly route: Route;
  readonly reply: SeenReply;
  readonly entries: readonly ActivityEvent[];
  readonly kept: ReadonlySet<string>;
  readonly listed: ReadonlySet<string>;
}): string | undefined {
  if (!isChange(route)) return entries.length === 0 ? undefined : 'a call that reads left an entry';
  const isOfNobody = status === 401 || route.scope === 'public';
  if (isOfNobody && outcomeOf(status) !== 'done') {
    return entries.length === 0 ? undefined : 'a refused stranger left an entry of its own';
  }
  const [entry] = entries;
  if (entry === undefined || entries.length > 1) return `left ${entries.length} entries`;
  const { eventType, accountId, eventId, details } = entry;
  const expected = { operation: route.operationId, outcome: outcomeOf(status), status };
  // Some refusals of keys are plain text, without a code.
  for (const [name, value] of Object.entries({
    ...expected,
    ...(code === undefined ? {} : { code }),
  })) {
    if (details[name] !== value) return `${name} is ${String(details[name])}`;
  }
  if (eventType !== route.event) return `is of type ${eventType}`;
  if (typeof details['address'] !== 'string') return 'says not from where';
  if (isOfNobody !== (accountId === undefined)) return `is of ${accountId}`;
  if (isOfNobody) return undefined;
  if (typeof details['keyId'] !== 'string') return 'says not with which key';
  return listed.has(eventId) || !kept.has(eventId)
    ? undefined
    : 'is not in the activity of the account';
}
