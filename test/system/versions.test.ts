/* Control and agents meet parts of other versions: they refuse them clearly and lose nothing. */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import anyTest, { type TestFn } from 'ava';
import { Queue } from 'bullmq';
import { WebSocket } from 'ws';
import { queues } from '../../shared/directory/keys.ts';
import { queueConnection } from '../../shared/directory/redis.ts';
import { newHostId } from '../../shared/ids.ts';
import { JobSeal } from '../../shared/jobs/job-seal.ts';
import type { JobEnvelope } from '../../shared/jobs/jobs.ts';
import { signConnectionKeys } from '../../shared/links/connection-keys.ts';
import { ConnectionSigner } from '../../shared/links/connection-token.ts';
import { signOnce } from '../../shared/links/single-use-token.ts';
import { encodeFrame, NO_SANDBOXES } from '../../shared/links/stream-protocol.ts';
import { PlayedNode } from '../helpers/played-node.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const test = anyTest as TestFn<{ stack: Stack }>;

const OF_TOMORROW = { oldest: 1000, newest: 1001 };

test.before(async (t) => {
  t.context.stack = await Stack.start();
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const secretOf = ({ environment }: Stack): string => environment['CLUSTER_SECRET'] ?? '';

test('A job that the agent does not know is answered at once, and not begun', async (t) => {
  const { stack } = t.context;
  await using node = await PlayedNode.open(stack);
  const { hostId } = await node.registration;
  const region = stack.environment['REGION'] ?? '';
  const { publicKeys } = new ConnectionSigner(['a secret of the played node'], region);
  const to = { nodeId: node.nodeId, hostId, region };
  const connectionKeys = signConnectionKeys([secretOf(stack)], to, publicKeys);
  node.send({ type: 'registered', nodeId: node.nodeId, connectionKeys });

  const queue = new Queue(queues.host(hostId), {
    connection: queueConnection(
      { url: stack.environment['REDIS_URL'] ?? '' },
      { blocking: false, prefix: '' },
    ),
    prefix: queues.prefix(hostId),
  });
  try {
    const id = randomUUID();
    const job = {
      ...{ id, kind: 'disk.ofTomorrow', payload: { accountId: 'acct-0123456789abcdef' } },
      ...{ replyTo: node.nodeId, requestId: 'req-1', deadlineAt: Date.now() + 60_000 },
    } as unknown as JobEnvelope;
    await queue.add(job.kind, new JobSeal([secretOf(stack)]).seal(queue.name, job), { jobId: id });
    const answer = await waitFor('the answer', async () =>
      node.frames.find((frame) => frame.type === 'error' && frame.jobId === id),
    );
    t.like(answer, { code: 'unavailable' });
    t.regex(answer.type === 'error' ? answer.message : '', /disk\.ofTomorrow.*not begun/u);
    t.false(node.frames.some(({ type }) => type === 'accepted'));
  } finally {
    await queue.close();
  }
});

test('An agent leaves a control node of a version that it does not speak', async (t) => {
  const { stack } = t.context;
  await using node = await PlayedNode.open(stack);
  await node.registration;
  const { nodeId } = node;
  node.send({ type: 'registered', nodeId, connectionKeys: '', protocol: OF_TOMORROW });
  await node.closed;
  await waitFor('the reason in the log', async () =>
    (await stack.agent.readLog()).includes('speaks versions 1000 to 1001, this node version 1'),
  );
  t.pass();
});

test('A control node refuses an agent of a version that it does not speak', async (t) => {
  const { stack } = t.context;
  const { environment } = stack;
  const { controlNodes } = await stack.openDirectory();
  const port = environment['CONTROL_INTERNAL_PORT'] ?? '';
  const nodes = await controlNodes.live();
  const node = nodes.find(({ linkUrl }) => linkUrl.includes(`:${port}/`));
  const [hostId, clusterId] = [newHostId(), environment['CLUSTER_ID'] ?? ''];
  const claims = { hostId, clusterId, nodeId: node?.nodeId ?? '' };
  const authorization = `Bearer ${signOnce([secretOf(stack)], 'agent-link', claims)}`;
  const socket = new WebSocket(node?.linkUrl ?? '', { headers: { authorization } });
  await once(socket, 'open');
  const said = { hostId, clusterId, region: environment['REGION'] ?? '', protocol: OF_TOMORROW };
  const urls = { publicUrl: 'http://127.0.0.1:1', internalUrl: 'http://127.0.0.1:2' };
  const idle = { execSlots: 0, execsRunning: 0, execsWaiting: 0, storageLow: true, draining: true };
  const load = { ...idle, sandboxes: NO_SANDBOXES };
  socket.send(encodeFrame({ type: 'register', ...said, ...urls, load }));
  const [code, reason] = (await once(socket, 'close')) as [number, Buffer];
  t.is(code, 1008);
  t.regex(
    reason.toString(),
    /speaks versions 1000 to 1001, this node version 1: upgrade this node/u,
  );
});
