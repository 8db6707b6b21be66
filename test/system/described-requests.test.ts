/*
 * The whole of /openapi.json against a real stack: requests that it allows are carried out or
 * refused for what they meet there, requests that it forbids are refused, and every answer is one
 * that it describes (`ApiClient` checks this).
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import { routes } from '../../control/routes.ts';
import type { ApiClient, ApiReply } from '../helpers/api.ts';
import { AuditedCalls, isChange } from '../helpers/audited-calls.ts';
import { ownBuckets } from '../helpers/buckets.ts';
import {
  type ApiDescription,
  type DescribedRequest,
  OperationRequests,
  operationsOf,
} from '../helpers/described-requests.ts';
import { createThings, type KnownThings } from '../helpers/described-things.ts';
import * as fc from '../helpers/fast-check.ts';
import { isFull } from '../helpers/full.ts';
import { makeOtherChanges } from '../helpers/other-changes.ts';
import { TestRegistry } from '../helpers/registry.ts';
import { SchemaDocument } from '../helpers/schema-values.ts';
import { containerSettings } from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';

const DRAWN = isFull ? 300 : 2;
const AT_ONCE = 8;

interface Context {
  readonly stack: Stack;
  readonly api: ApiClient;
  /** With a key for hosts. */
  readonly operator: ApiClient;
  readonly registry: TestRegistry;
  readonly directory: string;
  readonly document: ApiDescription;
  readonly schemas: SchemaDocument;
  readonly known: KnownThings;
  readonly calls: AuditedCalls;
  readonly counts: { sent: number; refused: number; statuses: Map<string, number> };
}
const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const calls = new AuditedCalls();
  const directory = await mkdtemp(join(tmpdir(), 'berth-test-registry-'));
  const registry = await TestRegistry.start(directory, 'open');
  const stack = await Stack.start({
    ...containerSettings(),
    ...(await ownBuckets()),
    // Three of the requested sandboxes find capacity; that costs time enough.
    SANDBOX_MEMORY_MIB: '1024',
    IMAGE_REGISTRIES: registry.url,
  });
  const api = await stack.newClient();
  const operator = await stack.newClient(['operator']);
  const response = await fetch(`${stack.baseUrl}/openapi.json`);
  const document = (await response.json()) as ApiDescription;
  const known = await createThings(api, registry);
  const counts = { sent: 0, refused: 0, statuses: new Map<string, number>() };
  const schemas = new SchemaDocument(document);
  const made = { stack, api, operator, registry, directory, document };
  t.context = { ...made, schemas, known, calls, counts };
});

test.after.always(async (t) => {
  const { stack, registry, directory, counts } = t.context as Partial<Context>;
  await stack?.stop();
  await registry?.stop();
  if (directory !== undefined) await rm(directory, { recursive: true });
  if (counts !== undefined) {
    const statuses = [...counts.statuses]
      .toSorted(([a], [b]) => (a < b ? -1 : 1))
      .map(([status, count]) => `${count} × ${status}`);
    t.log(`${counts.sent} requests, ${counts.refused} of them not valid: ${statuses.join(', ')}`);
  }
});

/**
 * Refusals that no schema can express; the description of the field or of the operation says it.
 */
const REFUSED_FOR_STATE: readonly (readonly [operation: RegExp, message: RegExp])[] = [
  [/^list/u, /^cursor is not one that (?:this list returned|a page was answered with)/u],
  [/SandboxFile|SandboxDirectory/u, /^the file system does not know such an owner, mode or name/u],
  [/^(?:createDisk|addDiskUser)$/u, /^tokenSuffix must be the last 4 characters of principal/u],
  [/^(?:createDisk|setAllowedOrigins)$/u, /^allowedOrigins: \S*(?:\[|xn--)\S* is not an origin/u],
  [/^removeDiskUser$/u, /^identifier is required|^the disk has no \w+ user with this identifier/u],
  [/^execOnDisks$/u, /^mount path .* lies within|does not exist on the disk/u],
  [/^(?:grepDisk|streamGrep)$/u, /^pattern: /u],
  [/^(?:create|start)Sandbox$/u, /^mounts\[\d+\]: (?:\S+ overlaps|disk \S+ is mounted twice)/u],
  [/^createSandbox$/u, /^the sandboxes of this snapshot have/u],
  [
    /^(?:createSandboxPortToken|createDisk|addDiskUser)$/u,
    /^body: ttl must be more than 0 and at most/u,
  ],
  [
    /^(?:createSandbox|setSandboxNetwork)$/u,
    /has two rules$|normal form$|names no host that can exist$|cannot be set by a rule$|is given twice$/u,
  ],
  [/^(?:createSandbox|setSandboxNetwork)$/u, /"[^"]*(?:[^\0-\u007f]|xn--)[^"]*" is neither/iu],
  [/^createWebhook$/u, /^url |^the account has \d+ webhooks/u],
  [/^setSandboxLimits$/u, /^a session lasts \d+ hours at most/u],
];

const isRefusedForState = (operationId: string, { error }: { error: string }): boolean =>
  REFUSED_FOR_STATE.some(([id, message]) => id.test(operationId) && message.test(error));

interface Refusal {
  readonly error: string;
  readonly code: string;
}

/** Whether the answer is a stream of events, which has no end of its own. */
async function isStreamed({ path, headers }: DescribedRequest, api: ApiClient): Promise<boolean> {
  const authorization = `Bearer ${api.key}`;
  const answer = await fetch(`${api.baseUrl}${path}`, { headers: { ...headers, authorization } });
  await answer.body?.cancel();
  return answer.headers.get('content-type') === 'text/event-stream';
}

/** @returns what is wrong with the answer */
async function check(request: DescribedRequest, context: Context): Promise<string | undefined> {
  const { method, path, body, headers, isValid } = request;
  const { counts } = context;
  const api = path.startsWith('/api/hosts') ? context.operator : context.api;
  let reply: ApiReply<Refusal>;
  try {
    if (isValid && request.isStream && (await isStreamed(request, api))) return undefined;
    reply = await api.call(method, path, body, headers);
  } catch (error) {
    return String(error);
  }
  counts.sent += 1;
  if (!isValid) counts.refused += 1;
  const answered = `${reply.status} ${reply.body.code ?? ''}`;
  counts.statuses.set(answered, (counts.statuses.get(answered) ?? 0) + 1);
  const isRefused = reply.status === 400 && reply.body.code === 'bad_request';
  if (reply.status === 500) return `500: ${JSON.stringify(reply.body)}`;
  if (isValid && isRefused && !isRefusedForState(request.operationId, reply.body)) {
    return `is described, but refused: ${reply.body.error}`;
  }
  const ignored = reply.headers.get('x-ignored-fields') ?? '';
  if (isValid && request.why.endsWith('unknown field') && !ignored.includes('noSuchField')) {
    return 'has an unknown field, which the answer does not name';
  }
  return isValid || isRefused ? undefined : `is not described, but answered with ${answered}`;
}

const show = ({ operationId, path, body, why }: DescribedRequest): string =>
  `${operationId} (${why}): ${path.slice(0, 200)} ${JSON.stringify(body)?.slice(0, 300) ?? ''}`;

/** Parts that vary by themselves may come to the same request. */
function* different(requests: Iterable<DescribedRequest>): Generator<DescribedRequest> {
  const seen = new Set<string>();
  for (const request of requests) {
    const { path, headers, body } = request;
    const key = JSON.stringify([path, headers, body]);
    if (!seen.has(key)) yield request;
    seen.add(key);
  }
}

/** @returns the requests that were answered wrongly, with what was wrong */
async function checkAll(requests: Iterable<DescribedRequest>, context: Context): Promise<string[]> {
  const wrong: string[] = [];
  const queue = different(requests);
  const work = async (): Promise<void> => {
    for (let next = queue.next(); next.done !== true; next = queue.next()) {
      const problem = await check(next.value, context);
      if (problem !== undefined) wrong.push(`${show(next.value)}\n  ${problem}`);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return wrong;
}

/** The sandbox runs until all that needs this is done. */
const inOrder = (document: ApiDescription): ReturnType<typeof operationsOf> =>
  operationsOf(document).toSorted(([, , a], [, , b]) => Number(stops(a)) - Number(stops(b)));

const stops = ({ operationId }: { operationId: string }): boolean =>
  /^(?:start|stop|pause|resume|fork)Sandbox$/u.test(operationId);

test.serial('requests that the description allows are never refused, others always', async (t) => {
  const { document, schemas, known } = t.context;
  const wrong: string[] = [];
  for (const entry of inOrder(document)) {
    const requests = new OperationRequests(schemas, entry, known(entry[2].operationId));
    wrong.push(...(await checkAll(requests.systematic(), t.context)));
  }
  t.deepEqual(wrong, []);
});

test.serial('neither are any others that are drawn from it', async (t) => {
  const { document, schemas, known } = t.context;
  for (const entry of inOrder(document)) {
    const requests = new OperationRequests(schemas, entry, known(entry[2].operationId));
    const property = fc.asyncProperty(requests.drawn(), async (request) => {
      const problem = await check(request, t.context);
      if (problem !== undefined) throw new Error(`${show(request)}: ${problem}`);
    });
    await t.notThrowsAsync(async () => fc.assert(property, { numRuns: DRAWN }));
  }
});

test.serial('every change succeeds once, and each call left one entry in the audit', async (t) => {
  const { stack, operator, calls } = t.context;
  await makeOtherChanges(stack, { api: await stack.newClient(), operator });
  const { succeeded } = calls;
  const missing = routes.filter((route) => isChange(route) && !succeeded.has(route.operationId));
  t.deepEqual(
    missing.map(({ operationId }) => operationId),
    [],
    'add them to test/helpers/other-changes.ts',
  );
  t.deepEqual(await calls.findFaults(stack), []);
});
