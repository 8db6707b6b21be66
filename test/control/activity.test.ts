/*
 * Every change that the API's description allows leaves exactly one entry, in the file and the
 * list.
 */
import { readFile, rename, rm } from 'node:fs/promises';
import { randomBytes, randomUUID } from 'node:crypto';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ActivityEvent } from '../../shared/schemas/activity.ts';
import { sha256 } from '../../shared/secrets.ts';
import type { ApiClient } from '../helpers/api.ts';
import { type ApiDescription, operationsOf } from '../helpers/described-requests.ts';
import { createDisk, exec, newName } from '../helpers/disks.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

const AUDIT_LOG = join(tmpdir(), `berth-test-audit-${randomBytes(4).toString('hex')}.log`);

const test = stackTest({ AUDIT_LOG }, async ({ stack }) => {
  const answer = await fetch(`${stack.baseUrl}/openapi.json`);
  const changing = operationsOf((await answer.json()) as ApiDescription).flatMap(
    ([method, path, operation]) => {
      const [way] = Reflect.get(operation, 'security') as Record<string, string[]>[];
      const [scope] = Object.values(way ?? {}).flat();
      const isChange = method !== 'get' && scope !== 'read';
      return isChange ? [{ method: method.toUpperCase(), path, name: operation.operationId }] : [];
    },
  );
  return { changing };
});

test.after.always(async () => {
  await rm(AUDIT_LOG, { force: true });
  await rm(`${AUDIT_LOG}.1`, { force: true });
});

const list = async (api: ApiClient, query = ''): Promise<ActivityEvent[]> =>
  (await api.call<{ data: ActivityEvent[] }>('GET', `/api/activity${query}`)).body.data;

async function readFileEntries(file = AUDIT_LOG): Promise<ActivityEvent[]> {
  const lines = (await readFile(file, 'utf8')).split('\n').filter((line) => line !== '');
  return lines.map((line) => JSON.parse(line) as ActivityEvent);
}

test.serial(
  'every operation that changes something leaves one entry, refused ones too',
  async (t) => {
    const { stack, changing } = t.context;
    const api = await stack.newClient();
    const reader = await api.data<{ id: string; token: string }>('POST', '/api/tokens', {
      name: 'reader',
      scopes: ['read'],
    });
    t.true(changing.length > 35);
    const sent: { requestId: string; name: string; status: number; code: string }[] = [];
    for (const { method, path, name } of changing) {
      const keysOf = [api.key, reader.token, 'key-of-nobody'];
      for (const key of keysOf) {
        const requestId = randomBytes(8).toString('hex');
        const headers = { 'x-request-id': requestId };
        const at = path.replaceAll(/\{\w+\}/gu, 'x');
        const body = method === 'DELETE' ? undefined : '{"secret":"very-secret"}';
        const reply = await api.withKey(key).call(method, at, body, headers);
        sent.push({ requestId, name, status: reply.status, code: reply.body.code });
      }
    }
    const inFile = await readFileEntries();
    const listed = await listAll(api);
    for (const { requestId, name, status, code } of sent) {
      const ofRequest = (entry: ActivityEvent): boolean => entry.details['requestId'] === requestId;
      const [entry, ...others] = inFile.filter(ofRequest);
      t.deepEqual(others, [], name);
      t.like(entry?.details, { operation: name, status }, name);
      if (status >= 400 && code !== undefined) t.is(entry?.details['code'], code, name);
      const shown = listed.filter(ofRequest);
      const isOfNobody = status === 401 || name === 'joinHost'; // A host has no account.
      t.deepEqual(shown, isOfNobody ? [] : [entry as ActivityEvent], name);
    }
    const text = JSON.stringify([inFile, listed]);
    for (const secret of [api.key, reader.token, 'very-secret']) t.false(text.includes(secret));
  },
);

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
  const { api } = t.context;
  await rename(AUDIT_LOG, `${AUDIT_LOG}.1`);
  const name = newName();
  await api.data('POST', '/api/disks', { name });
  const entries = await readFileEntries();
  t.is(entries.length, 1);
  t.true((await readFileEntries(`${AUDIT_LOG}.1`)).length > 0);
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
