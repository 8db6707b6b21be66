/* The events that calls leave, by how they were answered. */
import Koa from 'koa';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { pino } from 'pino';
import { statusOf, toCallerError } from '../../../control/http/error-status.ts';
import { audited } from '../../../control/http/middleware/audit.ts';
import type { RequestState } from '../../../control/http/middleware/request-state.ts';
import { changes } from '../../../control/http/route.ts';
import { routes } from '../../../control/routes.ts';
import { Activity } from '../../../shared/directory/activity.ts';
import { AppError, type ErrorCode } from '../../../shared/errors.ts';
import type { ActivityEvent } from '../../../shared/schemas/activity.ts';
import { redisTest } from '../../helpers/redis-test.ts';

const ACCOUNT = 'acct-1';

const test = redisTest((redis) => ({ activity: new Activity(redis) }));

test('calls that any key can have refused are in the activity and are not announced', async (t) => {
  const { activity } = t.context;
  const announced: ActivityEvent[] = [];
  const log = pino({ level: 'silent' });
  const announce = async (event: ActivityEvent): Promise<void> => {
    announced.push(event);
  };
  const route = routes.filter(changes).find(({ operationId }) => operationId === 'deleteDisk');
  if (route === undefined) throw new Error('there is no such route');
  const app = new Koa<RequestState>();
  app.use(async (ctx, next) => {
    const caller = { accountId: ACCOUNT, organization: 'n', keyId: 'key', scopes: [] };
    Object.assign(ctx.state, { caller, notes: {}, requestId: 'r', bringsUpSandbox: false });
    try {
      await next();
    } catch (thrown) {
      ctx.status = statusOf[toCallerError(thrown).code];
    }
  });
  app.use(
    audited(route, {
      activity,
      file: undefined,
      strangers: undefined,
      announce,
      trustedProxies: [],
      log,
    }),
  );
  app.use((ctx) => {
    throw new AppError(ctx.query['code'] as ErrorCode, 'refused');
  });
  const handle = app.callback();
  const server = createServer((request, response) => void handle(request, response));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  try {
    for (const code of [
      'rate_limited',
      'not_found',
      'account_limit_reached',
      'insufficient_scope',
    ]) {
      const reply = await fetch(`http://127.0.0.1:${port}/?code=${code}`, { method: 'DELETE' });
      await reply.text();
    }
  } finally {
    server.closeAllConnections();
    server.close();
  }
  const { items } = await activity.list(ACCOUNT, {});
  t.deepEqual(
    items.map(({ details }) => details['status']),
    [403, 429, 404, 429],
  );
  t.deepEqual(announced, items.slice(2, 3));
});
