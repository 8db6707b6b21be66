/* Traces of requests, from the caller's header to the container and the guest. */
import { randomBytes } from 'node:crypto';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk } from '../helpers/disks.ts';
import { ObjectClient } from '../helpers/objects.ts';
import { freePorts } from '../helpers/ports.ts';
import { containerSettings, removeSandbox } from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { type ReceivedSpan, TraceReceiver } from '../helpers/trace-receiver.ts';
import { waitFor } from '../helpers/wait.ts';

interface Context {
  readonly receiver: TraceReceiver;
  readonly stack: Stack;
  readonly api: ApiClient;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const receiver = await TraceReceiver.open();
  Object.assign(t.context, { receiver });
  const stack = await Stack.start({
    ...containerSettings(),
    OTEL_EXPORTER_OTLP_ENDPOINT: `${receiver.url}/prefix/`,
    OTEL_EXPORTER_OTLP_HEADERS: 'x-receiver-key=of%20the%20receiver',
    OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment=test',
    OTEL_BSP_SCHEDULE_DELAY: '100',
  });
  Object.assign(t.context, { stack });
  Object.assign(t.context, { api: await stack.newClient() });
});

test.after.always(async (t) => {
  await (t.context as Partial<Context>).stack?.stop();
  await (t.context as Partial<Context>).receiver?.close();
});

/** The caller's end of a trace. */
function newCaller(flags = '01') {
  const [traceId, spanId] = [randomBytes(16).toString('hex'), randomBytes(8).toString('hex')];
  return { traceId, spanId, headers: { traceparent: `00-${traceId}-${spanId}-${flags}` } };
}

/** The trace once it has these spans. */
const received = ({ receiver }: Context, traceId: string, names: readonly string[]) =>
  waitFor(`a trace of ${names.join(', ')}`, async () => {
    const spans = receiver.spansOfTrace(traceId);
    const have = new Set(spans.map(({ name }) => name));
    return names.every((name) => have.has(name)) && spans;
  });

/** From the outermost span to the one of this name: the names and services. */
function pathTo(spans: readonly ReceivedSpan[], name: string): string[] {
  const path: string[] = [];
  let span = spans.find((each) => each.name === name);
  while (span !== undefined) {
    path.unshift(`${String(span.service).replace('berth-', '')}: ${span.name}`);
    const { parentSpanId } = span;
    span = spans.find(({ spanId }) => spanId === parentSpanId);
  }
  return path;
}

test('An exec is one trace from the caller to the container', async (t) => {
  const { api, receiver, stack } = t.context;
  const { id } = await createDisk(api);
  const caller = newCaller();
  const secret = randomBytes(12).toString('hex');
  const requestId = `request-${randomBytes(4).toString('hex')}`;
  const path = `/api/disks/${id}/exec`;
  const headers = { ...caller.headers, 'x-request-id': requestId };
  const reply = await api.call('POST', path, { command: `echo ${secret}; exit 3` }, headers);
  t.is(reply.status, 200);
  const route = 'POST /api/disks/{id}/exec';
  const inner = ['queue.wait', 'turn.wait', 'journal.begin', 'disk.claim', 'container.take'];
  const inContainer = ['container.mount', 'command', 'container.unmount'];
  const outer = [route, 'directory.read', 'send exec.run', 'exec.run', 'container.run'];
  const names = [...outer, ...inner, ...inContainer, 'disk.attach'];
  const spans = await received(t.context, caller.traceId, names);

  t.is(spans.find(({ name }) => name === route)?.parentSpanId, caller.spanId);
  const way = [`control: ${route}`, 'control: send exec.run', 'agent: exec.run'];
  for (const name of inner) t.deepEqual(pathTo(spans, name), [...way, `agent: ${name}`]);
  const within = [...way, 'agent: container.run'];
  for (const name of inContainer) t.deepEqual(pathTo(spans, name), [...within, `agent: ${name}`]);
  t.deepEqual(pathTo(spans, 'disk.attach'), [...way, 'agent: disk.claim', 'agent: disk.attach']);
  t.deepEqual(pathTo(spans, 'directory.read'), [`control: ${route}`, 'control: directory.read']);
  const attributesOf = (name: string) => spans.find((span) => span.name === name)?.attributes;
  t.is(attributesOf(route)?.['http.response.status_code'], 200);
  t.is(attributesOf(route)?.['berth.request_id'], requestId);
  t.is(attributesOf('exec.run')?.['berth.request_id'], requestId);
  t.is(attributesOf('disk.attach')?.['berth.disk_id'], id);
  t.is(attributesOf('container.run')?.['berth.exit_code'], 3);
  for (const { startTimeUnixNano: begun, endTimeUnixNano: ended } of spans) {
    t.true(BigInt(begun) <= BigInt(ended));
  }

  for (const { name } of receiver.spans) t.notRegex(name, /dsk-|sbx-|[0-9a-f]{8}/u, name);
  for (const text of [secret, api.key, 'of the receiver', stack.environment['CLUSTER_SECRET']]) {
    t.false(receiver.text.includes(text ?? ''));
  }
  const { url, headers: sent } = receiver.requests[0] ?? {};
  t.is(url, '/prefix/v1/traces');
  t.is(sent?.['x-receiver-key'], 'of the receiver');
  t.true(receiver.text.includes('deployment.environment'));

  for (const event of ['request', 'job:ended', 'disk:attached']) {
    const line = await waitFor(`the trace's line ${event}`, async () => {
      const lines = (await stack.control.readLog()) + (await stack.agent.readLog());
      return lines
        .split('\n')
        .find((each) => each.includes(`"msg":"${event}"`) && each.includes(caller.traceId));
    });
    t.regex(line, new RegExp(`"trace_id":"${caller.traceId}","span_id":"[0-9a-f]{16}"`, 'u'));
  }
});

test('A sandbox and its command are traced to the machine and the guest', async (t) => {
  const { api, receiver } = t.context;
  const creation = newCaller();
  const body = { mem_size_mib: 256 };
  const path = '/api/sandboxes?wait=true';
  const created = await api.call<{ data: { sandbox_id: string } }>(
    ...(['POST', path, body, creation.headers] as const),
  );
  t.is(created.status, 202);
  const { sandbox_id: id } = created.body.data;
  const spans = await received(t.context, creation.traceId, ['sandbox.create', 'machine.start']);
  await received(t.context, creation.traceId, ['POST /api/sandboxes']);
  t.deepEqual(pathTo(spans, 'machine.start').slice(-2), [
    'agent: sandbox.create',
    'agent: machine.start',
  ]);
  const machine = spans.find(({ name }) => name === 'machine.start');
  t.is(machine?.attributes['berth.sandbox_id'], id);

  const run = newCaller();
  const secret = randomBytes(12).toString('hex');
  const execs = `/api/sandboxes/${id}/execs?wait=true`;
  await api.call('POST', execs, { command: `echo ${secret}` }, run.headers);
  const route = 'POST /api/sandboxes/{sid}/execs';
  const names = [route, 'send sandbox.exec', 'sandbox.exec', 'guest.command'];
  const inGuest = await received(t.context, run.traceId, names);
  t.deepEqual(pathTo(inGuest, 'guest.command'), [
    `control: ${route}`,
    'control: send sandbox.exec',
    'agent: sandbox.exec',
    'agent: guest.command',
  ]);
  t.false(receiver.text.includes(secret));
  await removeSandbox(api, id);
});

test('An object request is traced through control to the host of the disk', async (t) => {
  const { api, receiver, stack } = t.context;
  const { id } = await createDisk(api);
  const caller = newCaller();
  const secret = randomBytes(12).toString('hex');
  const objects = new ObjectClient(stack.baseUrl, api.key);
  const { headers } = caller;
  const put = await objects.call('PUT', `/${id}/${secret}`, { body: secret, headers });
  t.is(put.status, 200);
  const names = ['PUT /{diskId}/{key}', 'object PutObject', 'disk.attach'];
  const spans = await received(t.context, caller.traceId, names);
  t.deepEqual(pathTo(spans, 'disk.attach'), [
    'control: PUT /{diskId}/{key}',
    'agent: object PutObject',
    'agent: disk.attach',
  ]);
  t.false(receiver.text.includes(secret));
});

test('A job that fails is marked with its code', async (t) => {
  const { api } = t.context;
  const caller = newCaller();
  const { id } = await createDisk(api);
  const disks = { data: { disk: id, subdirectory: 'missing' } };
  const reply = await api.call('POST', '/api/exec', { command: 'true', disks }, caller.headers);
  t.is(reply.status, 400, JSON.stringify(reply.body));
  const spans = await received(t.context, caller.traceId, ['exec.run', 'send exec.run']);
  for (const name of ['exec.run', 'send exec.run']) {
    const span = spans.find((each) => each.name === name);
    t.is(span?.status.code, 2);
    t.is(span?.attributes['error.type'], 'bad_request');
  }
});

test('Only a valid traceparent is taken, and the caller decides about its sampling', async (t) => {
  const { api, receiver } = t.context;
  const kept = newCaller();
  const invalid = [
    `00-${'0'.repeat(32)}-${kept.spanId}-01`,
    `00-${kept.traceId}-${'0'.repeat(16)}-01`,
    `ff-${kept.traceId}-${kept.spanId}-01`,
    `00-${kept.traceId.toUpperCase().replaceAll(/\d/gu, 'A')}-${kept.spanId}-01`,
    `00-${kept.traceId}-${kept.spanId}-01${'x'.repeat(4_000)}`,
    'x',
  ];
  const count = (): number =>
    receiver.spans.filter(({ name }) => name === 'GET /api/webhooks').length;
  for (const traceparent of invalid) {
    const reply = await api.call('GET', '/api/webhooks', undefined, { traceparent });
    t.is(reply.status, 200, traceparent.slice(0, 60));
  }
  const unsampled = newCaller('00');
  await api.call('GET', '/api/webhooks', undefined, unsampled.headers);
  await api.call('GET', '/api/webhooks', undefined, kept.headers);
  await received(t.context, kept.traceId, ['GET /api/webhooks']);
  await waitFor('the other spans', async () => count() >= invalid.length + 1);
  t.is(receiver.spansOfTrace(kept.traceId).length, 1);
  t.is(receiver.spansOfTrace(unsampled.traceId).length, 0);
});

test.serial('Without its receiver a stack answers as ever, and says so in its log', async (t) => {
  const [port] = await freePorts(1);
  const settings = {
    OTEL_EXPORTER_OTLP_ENDPOINT: `http://127.0.0.1:${port}`,
    OTEL_BSP_SCHEDULE_DELAY: '100',
  };
  const node = await t.context.stack.addControl(settings);
  await node.start();
  const baseUrl = node.environment['PUBLIC_BASE_URL'] ?? '';
  for (let count = 0; count < 50; count += 1) {
    const { status } = await fetch(`${baseUrl}/openapi.json`);
    t.is(status, 200);
  }
  const failures = async (): Promise<number> =>
    (await node.daemon.readLog()).split('trace:exportFailed').length - 1;
  const receiver = await TraceReceiver.open(port);
  receiver.status = 400;
  try {
    await waitFor('the failure in the log', async () => (await failures()) > 0);
    receiver.status = 200;
    await waitFor('spans again', async () => {
      await fetch(`${baseUrl}/openapi.json`);
      return receiver.spans.length > 0;
    });
    await waitFor('the log', async () =>
      (await node.daemon.readLog()).includes('trace:exportResumed'),
    );
    t.is(await failures(), 1);
  } finally {
    await receiver.close();
  }
});
