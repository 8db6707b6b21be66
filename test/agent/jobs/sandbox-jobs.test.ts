/* Answers of jobs on sandboxes, with machines and slots in memory and a real directory. */
import test from 'ava';
import { sandboxJobs } from '../../../agent/jobs/sandbox-jobs.ts';
import { openDirectory } from '../../../shared/directory/directory.ts';
import { newJobId } from '../../../shared/ids.ts';
import { HostedSandboxes } from '../../helpers/hosted-sandboxes.ts';
import { startRedis } from '../../helpers/redis.ts';
import { waitFor } from '../../helpers/wait.ts';

const PAUSED_MS = 600;

test('a caller who was told the state of a sandbox finds the same state in the directory', async (t) => {
  await using server = await startRedis();
  const { redis } = server;
  await using host = await HostedSandboxes.open(redis);
  const ref = await host.create();
  const reader = redis.duplicate();
  t.teardown(() => reader.disconnect());
  await reader.connect();
  const { sandboxes } = openDirectory(reader, 'local-test');

  const shown = async () => (await sandboxes.get(ref.accountId, ref.sandboxId))?.state;
  // The directory takes nothing from the time that it shows that the machine is being paused.
  host.gate = async () => {
    await waitFor('the transition', async () => (await shown()) === 'pausing');
    await reader.call('CLIENT', 'PAUSE', String(PAUSED_MS), 'WRITE');
  };
  const payload = { ...ref, action: 'pause', waitMs: 10_000 } as const;
  const envelope = { id: newJobId(), kind: 'sandbox.action', payload, replyTo: '' } as const;
  const job = { ...envelope, requestId: '', deadlineAt: Date.now() + 60_000 };
  const { result } = await sandboxJobs(host)['sandbox.action'](
    job,
    () => undefined,
    () => undefined,
  );
  t.is(result.sandbox.state, 'paused');
  t.is(await shown(), 'paused');
});
