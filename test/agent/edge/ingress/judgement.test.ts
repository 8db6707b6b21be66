/* How a request is judged: its hostname, the read of its route, and the verdict. */
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { parseIngressHost } from '../../../../agent/edge/ingress/ingress-host.ts';
import { judge } from '../../../../agent/edge/ingress/judge.ts';
import { RouteReads } from '../../../../agent/edge/ingress/route-reads.ts';
import type { PortRoute } from '../../../../shared/directory/sandbox-routes.ts';
import { newAccountId, newHostId, newSandboxId, routeIdOf } from '../../../../shared/ids.ts';

const ID = newSandboxId();
const ROUTE = routeIdOf(ID);
const ZONE = 'sbx.localhost';

test('hostnames are read in any case, with a port and a final dot', (t) => {
  const named = { port: 80, routeId: ROUTE };
  for (const host of [`80-${ROUTE}.${ZONE}`, `80-${ROUTE.toUpperCase()}.SBX.localhost.:8712`]) {
    t.deepEqual(parseIngressHost(host, ZONE), named, host);
  }
});

test('nothing else is a hostname of a port', (t) => {
  for (const host of [
    ...['', ZONE, `.${ZONE}`, `80.${ZONE}`, `80-${ROUTE}`, `80-${ROUTE}.localhost`],
    ...[`080-${ROUTE}.${ZONE}`, `0-${ROUTE}.${ZONE}`, `65536-${ROUTE}.${ZONE}`, `80-${ID}.${ZONE}`],
    ...[
      `80-${ROUTE}x.${ZONE}`,
      `x.80-${ROUTE}.${ZONE}`,
      `80-${ROUTE}.${ZONE}.x`,
      `80-${ROUTE}${ZONE}`,
    ],
    ...[`80-${ROUTE}.${ZONE}:x`, `80-${ROUTE}.${ZONE}\n`, `+80-${ROUTE}.${ZONE}`],
  ]) {
    t.is(parseIngressHost(host, ZONE), undefined, host);
  }
});

const route = (changes: Partial<PortRoute> = {}): PortRoute => ({
  ...{ accountId: newAccountId(), sandboxId: ID, hostId: newHostId() },
  ...{ isExposed: false, hasServiceIngress: false, isServicePort: false, token: undefined },
  ...changes,
});
const token = (port: number, expiresAt?: number): Partial<PortRoute> => ({
  token: { port, createdAt: 0, expiresAt },
});

test('a request passes by a public port, a live token of the port, or a service', (t) => {
  t.is(judge(undefined, 80), 'refuse');
  t.is(judge(route(), 80), 'refuse');
  t.is(judge(route({ isExposed: true }), 80), 'pass');
  t.is(judge(route(token(80)), 80), 'pass');
  t.is(judge(route(token(81)), 80), 'refuse');
  t.is(judge(route(token(80, 1000)), 80, 999), 'pass');
  t.is(judge(route(token(80, 1000)), 80, 1000), 'refuse');
  t.is(judge(route({ hasServiceIngress: true }), 80), 'ask');
  t.is(judge(route({ hasServiceIngress: true, isServicePort: true }), 80), 'pass');
  // The verdict was cached before the sandbox lost the setting.
  t.is(judge(route({ isServicePort: true }), 80), 'refuse');
});

test('a request is judged by a read that began after it came, and shares it with others', async (t) => {
  const begun: ((found: PortRoute | undefined) => void)[] = [];
  const reads = new RouteReads({
    find: () => {
      const { promise, resolve } = Promise.withResolvers<PortRoute | undefined>();
      begun.push(resolve);
      return promise;
    },
  });
  const first = reads.find(ROUTE, 80, 'x');
  const later = [reads.find(ROUTE, 80, 'x'), reads.find(ROUTE, 80, 'x')];
  t.is(begun.length, 1);
  begun[0]?.(route());
  t.truthy(await first);
  await sleep(10);
  t.is(begun.length, 2);
  begun[1]?.(undefined); // Revoked meanwhile.
  t.deepEqual(await Promise.all(later), [undefined, undefined]);
  const last = reads.find(ROUTE, 80, 'x');
  t.is(begun.length, 3);
  begun[2]?.(undefined);
  t.is(await last, undefined);
});

test('a read that fails does not spoil the next', async (t) => {
  let count = 0;
  const reads = new RouteReads({
    find: async () => {
      count += 1;
      if (count === 1) throw new Error('the directory is away');
      return undefined;
    },
  });
  const [first, second] = [reads.find(ROUTE, 80, undefined), reads.find(ROUTE, 80, undefined)];
  await t.throwsAsync(first);
  t.is(await second, undefined);
  t.is(await reads.find(ROUTE, 80, undefined), undefined);
  t.is(count, 3);
});
