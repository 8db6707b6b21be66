/*
 * Every change that the API's description allows leaves exactly one entry, in the file and the
 * list.
 */
import { rename } from 'node:fs/promises';
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import type { ActivityEvent } from '../../../../shared/schemas/activity.ts';
import { sha256 } from '../../../../shared/secrets.ts';
import { routes } from '../../../../control/routes.ts';
import type { ApiClient } from '../../../helpers/api.ts';
import { AuditedCalls, isChange, readAuditLog } from '../../../helpers/audited-calls.ts';
import { createDisk, exec, newName } from '../../../helpers/disks.ts';
import { stackTest } from '../../../helpers/stack-test.ts';
import { waitFor } from '../../../helpers/wait.ts';

const test = stackTest();

const list = async (api: ApiClient, query = ''): Promise<ActivityEvent[]> =>
  (await api.call<{ data: ActivityEvent[] }>('GET', `/api/activity${query}`)).body.data;

test.serial(
  'every operation that changes something leaves one entry, refused ones too',
  async (t) => {
    const { stack } = t.context;
    const api = await stack.newClient();
    const reader = await api.data<{ id: string; token: string }>('POST', '/api/tokens', {
      name: 'reader',
      scopes: ['read'],
    });
    const calls = new AuditedCalls();
    const changing = routes.filter(isChange);
    t.true(changing.length > 35);
    for (const { method, path } of changing) {
      for (const key of [api.key, reader.token, 'key-of-nobody']) {
        const at = path.replaceAll(/\{\w+\}/gu, 'x');
        const body = method === 'delete' ? undefined : '{"secret":"very-secret"}';
        await api.withKey(key).call(method.toUpperCase(), at, body);
      }
    }
    t.deepEqual(await calls.findFaults(stack), []);
    const entries = await readAuditLog(stack.environment['AUDIT_LOG'] ?? '');
    const text = JSON.stringify([entries, await listAll(api)]);
    for (const secret of [api.key, reader.token, 'very-secret']) t.false(text.includes(secret));
  },
);

test('whatever leaves an entry is a change by its method and scope', (t) => {
  for (const route of routes) t.is(route.event !== undefined, isChange(route), route.operationId);
});

async function listAll(api: ApiClient): Promise<ActivityEvent[]> {
  const events: ActivityEvent[] = [];
  let cursor: string | undefined;
  do {
    const query = cursor === undefined ? '?limit=7' : `?limit=7&cursor=${cursor}`;
    const path = `/api/activity${query}`;
    const { body } = await api.call<{ data: ActivityEvent[]; nextCursor?: string }>('GET', path);
    events.push(...body.data);
    cursor = body.nextCursor;
  } while (cursor !== undefined);
  return events;
}

test('an entry says who, from where, what, and how it ended', async (t) => {
  const api = await t.context.stack.newClient();
  const { id } = await createDisk(api);
  await exec(api, id, 'exit 3');
  const missing = 'dsk-0000000000000000';
  await api.call('DELETE', `/api/disks/${missing}`);
  const [removed, ran, created, ...rest] = await list(api);
  t.deepEqual(rest, []);
  const who = { keyId: sha256(api.key), address: '127.0.0.1' };
  t.like(created, { eventType: 'disk.created', level: 'info', diskId: id });
  t.like(created?.details, { ...who, operation: 'createDisk', outcome: 'done', status: 201 });
  t.like(ran, { eventType: 'disk.exec', level: 'info', diskId: id });
  t.like(ran?.details, { ...who, params: { id }, exitCode: 3 });
  t.like(removed, { eventType: 'disk.deleted', level: 'warning', diskId: missing });
  t.like(removed?.details, { ...who, outcome: 'refused', status: 404, code: 'not_found' });
});

test('the list is filtered by disk, sandbox, type and level, and read in pages', async (t) => {
  const api = await t.context.stack.newClient();
  const [a, b] = [await createDisk(api), await createDisk(api)];
  await exec(api, a.id, 'true');
  const disks = { a: a.id, b: b.id };
  await api.data('POST', '/api/exec', { command: 'true', disks });
  await api.call('POST', '/api/disks', { name: 'not a name' });
  const types = async (query: string): Promise<string[]> =>
    (await list(api, query)).map(({ eventType }) => eventType);
  t.deepEqual(await types(`?diskId=${a.id}`), ['disk.exec', 'disk.exec', 'disk.created']);
  t.deepEqual(await types(`?diskId=${b.id}`), ['disk.exec', 'disk.created']);
  t.deepEqual(await types('?eventType=disk.exec'), ['disk.exec', 'disk.exec']);
  t.is((await list(api, '?eventType=disk.exec&eventType=disk.created')).length, 5);
  t.deepEqual(await types('?level=warning'), ['disk.created']);
  t.deepEqual(await types('?eventType=key.created'), []);
  t.is((await listAll(api)).length, 5);
  const [missing, other] = [randomUUID(), randomUUID()];
  await api.call('POST', `/api/sandboxes/${missing}/fork`);
  t.deepEqual(await types(`?sandboxId=${missing}`), ['sandbox.forked']);
  t.deepEqual(await types(`?sandboxId=${other}`), []);
  const malformed = ['cursor=garbled', 'eventType=none', 'level=loud', 'limit=0'];
  for (const query of [...malformed, 'diskId=x', 'sandboxId=x']) {
    t.is((await api.call('GET', `/api/activity?${query}`)).status, 400, query);
  }
});

test('nobody sees what another account did', async (t) => {
  const [mine, theirs] = [await t.context.stack.newClient(), await t.context.stack.newClient()];
  await createDisk(theirs);
  t.deepEqual(await list(mine), []);
});

test.serial('the file can be renamed while control runs', async (t) => {
  const { stack, api } = t.context;
  const file = stack.environment['AUDIT_LOG'] ?? '';
  await rename(file, `${file}.1`);
  const name = newName();
  await api.data('POST', '/api/disks', { name });
  t.is((await readAuditLog(file)).length, 1);
  t.true((await readAuditLog(`${file}.1`)).length > 0);
});

test.serial('calls without a key leave one line when the node ends', async (t) => {
  const { stack } = t.context;
  const file = join(stack.directory, 'strangers.log');
  const node = await stack.addControl({ AUDIT_LOG: file });
  await node.start();
  const url = `${node.environment['PUBLIC_BASE_URL']}/api/disks`;
  for (const authorization of ['', 'key-unknown', 'Bearer x']) {
    const response = await fetch(url, { method: 'POST', headers: { authorization }, body: '{}' });
    t.is(response.status, 401);
  }
  await node.daemon.stop();
  const lines = (await readAuditLog(file)) as unknown[];
  t.like(lines, [{ level: 'warning', details: { address: '127.0.0.1', count: 3 } }]);
});

test.serial('a change that cannot be written down is made all the same', async (t) => {
  const { stack } = t.context;
  const node = await stack.addControl({ AUDIT_LOG: join(stack.directory, 'missing/audit.log') });
  await node.start();
  const api = await stack.newClient();
  const response = await fetch(`${node.environment['PUBLIC_BASE_URL']}/api/tokens`, {
    method: 'POST',
    headers: { authorization: api.key },
    body: JSON.stringify({ name: newName() }),
  });
  t.is(response.status, 201);
  t.is((await list(api)).length, 1);
  await waitFor('the report', async () => /audit:entryLost/u.test(await node.daemon.readLog()));
  t.pass();
});
