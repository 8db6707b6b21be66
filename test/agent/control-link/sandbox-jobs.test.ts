/* Answers of jobs on sandboxes, with machines and slots in memory and a real directory. */
import assert from 'node:assert';
import test from 'ava';
import { sandboxJobs } from '../../../agent/control-link/sandbox-jobs.ts';
import { openDirectory } from '../../../shared/directory/directory.ts';
import { newJobId, newSandboxId } from '../../../shared/ids.ts';
import type { JobEnvelope, JobPayload } from '../../../shared/jobs/jobs.ts';
import { HostedSandboxes } from '../../helpers/hosted-sandboxes.ts';
import { startRedis } from '../../helpers/redis.ts';
import { waitFor } from '../../helpers/wait.ts';

const PAUSED_MS = 600;
const ignore = (): void => undefined;

const envelopeOf = <K extends 'sandbox.action' | 'sandbox.fork'>(
  kind: K,
  payload: JobPayload<K>,
): JobEnvelope<K> => {
  const deadlineAt = Date.now() + 60_000;
  return { id: newJobId(), kind, payload, replyTo: '', requestId: '', deadlineAt };
};

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
  const job = envelopeOf('sandbox.action', payload);
  const { result } = await sandboxJobs(host)['sandbox.action'](job, ignore, ignore);
  t.is(result.sandbox.state, 'paused');
  t.is(await shown(), 'paused');
});

// Public clients fork so, and resume the source if their pause was answered with `pausing`.
test('a caller who pauses a sandbox that runs is told so, and forks what the pause has saved', async (t) => {
  await using host = await HostedSandboxes.open();
  const ref = await host.create();
  const jobs = sandboxJobs(host);
  const act = async (action: 'pause' | 'resume') => {
    const job = envelopeOf('sandbox.action', { ...ref, action, waitMs: 0 });
    return (await jobs['sandbox.action'](job, ignore, ignore)).result.sandbox;
  };
  const { state, checkpoint } = await act('pause');
  t.true(['pausing', 'paused'].includes(state), state);
  assert(checkpoint !== undefined);
  await host.registry.find(ref).settled(10_000);
  const again = await act('pause');
  t.deepEqual([again.state, again.checkpoint], ['paused', checkpoint]);
  const copy = { childId: newSandboxId(), name: 'copy', checkpoint, waitMs: 0 };
  const job = envelopeOf('sandbox.fork', { ...ref, ...copy });
  const { sandbox } = (await jobs['sandbox.fork'](job, ignore, ignore)).result;
  t.is(sandbox.config.name, 'copy');
  const resumed = await act('resume');
  t.true(['pending_resume', 'running'].includes(resumed.state), resumed.state);
  await host.registry.find(ref).settled(10_000);
  t.is(host.registry.find(ref).row.state, 'running');
});
