import type { Middleware } from 'koa';
import Type from 'typebox';
import type { Caller } from '../../../shared/directory/api-keys.ts';
import { AppError } from '../../../shared/errors.ts';
import type { FairShares } from '../../../shared/fair-shares.ts';
import { lingerAfterAnswer } from '../../../shared/http/early-answer.ts';
import { clientAddress } from '../../../shared/http/client-address.ts';
import { findDuplicateKey, JsonRefused, parseCallerJson } from '../../../shared/json.ts';
import { HTTP_LIMITS } from '../limits.ts';
import { compile } from '../../../shared/validate.ts';
import { sha256 } from '../../../shared/secrets.ts';
import { limitReached } from '../account-limits.ts';
import type { Deps } from '../../region/deps.ts';
import type { EnvelopeReply, Reply, Route, StreamReply } from '../route.ts';
import { answerOnce } from '../answer-once.ts';
import type { BodyShares, HeldBody } from '../body-shares.ts';
import { requireScope } from '../key-rights.ts';
import { hasLongText, streamEnvelope } from '../long-answer.ts';
import { readBody } from '../read-body.ts';
import { addsToDirectory, readsJson } from '../route-errors.ts';
import type { Authenticator } from '../../../shared/directory/authenticator.ts';
import { timerMs } from '../../../shared/units.ts';
import { listIgnored } from './ignored-fields.ts';
import { renderStream } from './render-stream.ts';
import type { RequestContext, RequestState } from './request-state.ts';
import { takeRequest } from './take-request.ts';

const Anything = Type.Object({});
const EXECS: ReadonlySet<Route['event']> = new Set(['disk.exec', 'sandbox.exec']);
const NEVER_ABORTED = new AbortController().signal;
const PUBLIC: Caller = { accountId: '', organization: '', keyId: '', scopes: [] };

// Many tools send JSON without saying so (curl -d); nothing else is ever meant here.
const JSON_TYPES = [
  'application/json',
  'application/*+json',
  'application/x-www-form-urlencoded',
  'text/plain',
];

const carriesBody = (ctx: RequestContext): boolean =>
  ctx.request.length !== undefined ? ctx.request.length > 0 : ctx.get('transfer-encoding') !== '';

function parseBody(text: string): unknown {
  if (text === '') return {};
  try {
    return parseCallerJson(text);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    const why = error instanceof JsonRefused ? `: ${error.message}` : '';
    throw new AppError('bad_request', `the request body is not valid JSON${why}`);
  }
}

/** Leaves nothing of a body unread on a connection that goes on. */
function dropRest({ req, res }: RequestContext): void {
  if (req.complete) req.resume();
  // A body of which nothing was read is dropped by Node.
  else if (req.readableDidRead) lingerAfterAnswer(req, res);
}

async function readText(ctx: RequestContext, route: Route, held: HeldBody): Promise<string> {
  if (typeof ctx.is(JSON_TYPES) !== 'string') {
    throw new AppError('bad_request', 'send the body as JSON, with Content-Type: application/json');
  }
  const { bodyBytesMax: bytesMax = HTTP_LIMITS.requestBodyBytesMax, scope } = route;
  // A few compressed bytes may become very many: nobody may send them without a key.
  const bounds = { bytesMax, mayBeCompressed: scope !== 'public', held };
  try {
    return await readBody(ctx.req, bounds);
  } catch (error) {
    dropRest(ctx);
    throw error;
  }
}

function readJson(text: string, { bodyKeysUnique }: Route): unknown {
  const body = parseBody(text);
  const duplicate = bodyKeysUnique === true ? findDuplicateKey(text) : undefined;
  if (duplicate === undefined) return body;
  throw new AppError(
    'bad_request',
    `the key ${JSON.stringify(duplicate)} occurs twice in the body`,
  );
}

/** Unknown input is ignored, as the wire contract asks; the answer says what was. */
function nameIgnored(ctx: RequestContext, route: Route, body?: unknown): void {
  const names = listIgnored(route, { query: ctx.query, body });
  if (names !== undefined) ctx.set('x-ignored-fields', names);
}

/** Aborts when the connection ends before the answer was sent. Created only on request. */
function hangUpSignal(ctx: RequestContext): AbortSignal {
  const controller = new AbortController();
  if (ctx.res.destroyed) controller.abort();
  ctx.res.once('close', () => {
    if (!ctx.res.writableFinished) controller.abort();
  });
  return controller.signal;
}

function render(ctx: RequestContext, { status, data, nextCursor }: EnvelopeReply): void {
  ctx.status = status;
  if (status === 204) return;
  if (hasLongText(data)) {
    ctx.type = 'json';
    ctx.body = streamEnvelope(data);
    return;
  }
  ctx.body = {
    success: true,
    ...(data === undefined ? {} : { data }),
    ...(nextCursor === undefined ? {} : { nextCursor }),
  };
}

function checkKey(key: string): string {
  if (key.length <= HTTP_LIMITS.idempotencyKeyLengthMax && /^[\x21-\x7e]+$/u.test(key)) return key;
  throw new AppError(
    'bad_request',
    `Idempotency-Key must be 1 to ${HTTP_LIMITS.idempotencyKeyLengthMax} printable ASCII characters`,
  );
}

/**
 * A result that a key with an end has made ends with it: no other key gets that as its own answer.
 */
const fingerprintOf = (ctx: RequestContext, text: string, { keyId, endsAt }: Caller): string =>
  sha256(`${ctx.method} ${ctx.path}\n${text}${endsAt === undefined ? '' : `\n${keyId}`}`);

/** An upload may be answered before all of it was read; the connection is of no more use then. */
async function withUpload<T>(
  { upload }: Route,
  { req, res }: RequestContext,
  handle: () => Promise<T>,
): Promise<T> {
  try {
    return await handle();
  } finally {
    if (upload === true && !req.complete && !res.headersSent) lingerAfterAnswer(req, res);
  }
}

/** Whose request it is. @throws AppError `unauthorized`, `rate_limited`, `insufficient_scope` */
async function admit(
  ctx: RequestContext,
  deps: Deps,
  { authenticator, route: { scope } }: { authenticator: Authenticator; route: Route },
): Promise<Caller> {
  const { state } = ctx;
  if (scope === 'public') return PUBLIC;
  const caller = await authenticator.authenticate(ctx.get('authorization'));
  state.notes['accountId'] = caller.accountId;
  state.caller = caller;
  await takeRequest(ctx, deps, caller.accountId);
  requireScope(caller, scope);
  return caller;
}

/** @throws AppError `account_limit_reached` when the account's disks hold what they may */
async function refuseIfFull({ directory }: Deps, { accountId }: Caller): Promise<void> {
  const reached = await directory.accountQuotas.whyNotWrite(accountId);
  if (reached !== undefined) throw limitReached(reached);
}

/** @throws AppError `bad_request` */
function checkInput(
  ctx: RequestContext,
  route: Route,
  check: ((input: unknown, where: string) => unknown) | undefined,
  text: string | undefined,
): unknown {
  const body = text === undefined ? undefined : readJson(text, route);
  // Before the check: a required field that is misspelt is missing, too.
  nameIgnored(ctx, route, body);
  if (check === undefined) return undefined;
  if (body !== undefined) return check(body, 'body');
  if (route.bodyOptional === true) return undefined;
  check({}, 'body'); // Names the first field that is missing.
  const { properties = {} } = (route.body ?? {}) as { properties?: object };
  const fields = Object.keys(properties).join(', ');
  throw new AppError('bad_request', `the request has no body: send JSON with ${fields}`);
}

/** Ends a stream, which lasts until its reader leaves, with the reader's key. */
function endStream({ stream }: StreamReply, { events }: Route, { endsAt }: Caller): void {
  if (events === undefined || endsAt === undefined) return;
  const timer = setTimeout(() => stream.destroy(), timerMs(endsAt - Date.now()));
  stream.once('close', () => clearTimeout(timer));
}

interface Work {
  readonly caller: Caller;
  /** The request's body. */
  readonly text: string | undefined;
  readonly waits: FairShares;
  readonly run: (callerGone: () => AbortSignal) => Promise<Reply>;
}

/** Answers once for each `Idempotency-Key`, if the request has one. */
async function answer(
  deps: Deps,
  ctx: RequestContext,
  route: Route,
  { caller, text, waits, run }: Work,
): Promise<void> {
  const key = route.idempotent === true ? ctx.req.headers['idempotency-key'] : undefined;
  if (key === undefined) {
    const reply = await withUpload(route, ctx, () => run(() => hangUpSignal(ctx)));
    if (!('stream' in reply)) return render(ctx, reply);
    endStream(reply, route, caller);
    return renderStream(ctx, reply);
  }
  const { requestId } = ctx.state;
  const fingerprint = fingerprintOf(ctx, text ?? '', caller);
  const call = {
    accountId: caller.accountId,
    key: checkKey(String(key)),
    fingerprint,
    requestId,
    signal: hangUpSignal(ctx),
    waits,
  };
  // A request with a key continues when its caller hangs up, because the caller will ask again.
  const { reply, replayed } = await answerOnce(deps, call, () => run(() => NEVER_ABORTED));
  if (replayed) ctx.set('idempotency-replayed', 'true');
  if (!('stream' in reply)) render(ctx, reply);
}

/** Parts that all endpoints of a node share. */
export interface SharedParts {
  readonly authenticator: Authenticator;
  readonly bodies: BodyShares;
  /** Permits for requests that wait for the answer to another one with their `Idempotency-Key`. */
  readonly waits: FairShares;
}

/** Turns a route into middleware: credentials, then every part of the input, then the handler. */
export function endpoint(
  deps: Deps,
  { authenticator, bodies, waits }: SharedParts,
  route: Route,
): Middleware<RequestState> {
  const checkParams = compile(route.params ?? Anything, { coerce: true });
  const checkQuery = route.query === undefined ? undefined : compile(route.query, { coerce: true });
  const checkBody = route.body === undefined ? undefined : compile(route.body);
  return async (ctx) => {
    const { state } = ctx;
    state.routePath = route.path;
    state.plainUnauthorized = route.plainUnauthorized === true;
    state.bringsUpSandbox = route.bringsUpSandbox === true;
    const caller = await admit(ctx, deps, { authenticator, route });
    const params = checkParams(Reflect.get(ctx, 'params'), 'path');
    nameIgnored(ctx, route);
    const query = checkQuery?.({ ...ctx.query }, 'query') ?? {};
    if (addsToDirectory(route)) deps.directorySpace.refuseIfLow();
    using held = bodies.begin(caller.accountId);
    const hasBody = readsJson(route) && carriesBody(ctx);
    const text = hasBody ? await readText(ctx, route, held) : undefined;
    const body = readsJson(route) ? checkInput(ctx, route, checkBody, text) : undefined;
    const further = route.furtherScope?.(body);
    if (further !== undefined) requireScope(caller, further);
    if (route.fillsDisks === true) await refuseIfFull(deps, caller);
    const run = (callerGone: () => AbortSignal): Promise<Reply> =>
      route.handle({
        deps,
        caller,
        params,
        query,
        search: ctx.querystring,
        body,
        request: ctx.req,
        requestId: state.requestId,
        method: ctx.method,
        headers: ctx.headers,
        get address() {
          return clientAddress(ctx.req, deps.config.http.trustedProxies);
        },
        arrivedAt: state.arrivedAt,
        callerGone,
        note: (fields) => Object.assign(state.notes, fields),
      });
    await answer(deps, ctx, route, { caller, text, waits, run });
    const isReplay = ctx.response.get('idempotency-replayed') === 'true';
    if (EXECS.has(route.event) && !isReplay) deps.usage.count(caller.accountId, 'execs');
  };
}
