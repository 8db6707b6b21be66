/* Requests that repeat an Idempotency-Key while the first one with it is still running. */
import { randomBytes } from 'node:crypto';
import { answerOnce, type KeyedCall, type KeyedDeps } from '../../../control/http/answer-once.ts';
import type { Reply } from '../../../control/http/route.ts';
import { ControlNodes } from '../../../shared/directory/control-nodes.ts';
import { IdempotencyKeys } from '../../../shared/directory/idempotency-keys.ts';
import { unconfirmed } from '../../../shared/directory/replica-confirmation.ts';
import { AppError } from '../../../shared/errors.ts';
import { FairShares } from '../../../shared/fair-shares.ts';
import { redisTest } from '../../helpers/redis-test.ts';
import { waitFor } from '../../helpers/wait.ts';

const REGION = 'local-test';

const test = redisTest((redis) => {
  const deps: KeyedDeps = {
    nodeId: 'node-1',
    config: {
      execTimeoutMs: 60_000,
      cluster: { region: REGION, encryptionKeys: [randomBytes(32)] },
    },
    directory: {
      controlNodes: new ControlNodes(redis, REGION),
      idempotencyKeys: new IdempotencyKeys(redis, unconfirmed),
    },
  };
  return { deps };
});

const never = (): Promise<Reply> => Promise.reject(new Error('this must not run'));

test('repetitions of one account leave places to wait for those of the next', async (t) => {
  const { deps } = t.context;
  const node = { nodeId: deps.nodeId, linkUrl: 'ws://127.0.0.1', linkShare: 1 };
  await deps.directory.controlNodes.announce(node, false);
  const waits = new FairShares(4);
  let requests = 0;
  const callOf = (accountId: string, signal = new AbortController().signal): KeyedCall => ({
    ...{ accountId, key: 'key', fingerprint: 'f', signal, waits },
    requestId: `request-${(requests += 1)}`,
  });
  const { promise: done, resolve: finish } = Promise.withResolvers<Reply>();
  const firsts = ['one', 'two'].map((accountId) => answerOnce(deps, callOf(accountId), () => done));
  await waitFor('both keys to be claimed', async () => {
    const claimed = await t.context.redis.keys('berth:{idempotency}:key:*');
    return claimed.length === 2;
  });
  const hangUp = new AbortController();
  const gone = answerOnce(deps, callOf('one', hangUp.signal), never);
  const waiting = answerOnce(deps, callOf('one'), never);
  const refused = { instanceOf: AppError, code: 'rate_limited' };
  await t.throwsAsync(answerOnce(deps, callOf('one'), never), refused);
  hangUp.abort();
  await t.throwsAsync(gone, { instanceOf: AppError, code: 'cancelled' });
  const late = answerOnce(deps, callOf('one'), never);
  const other = answerOnce(deps, callOf('two'), never);
  finish({ status: 201, data: { made: true } });
  const answers = await Promise.all([...firsts, waiting, other, late]);
  t.deepEqual(
    answers.map(({ replayed }) => replayed),
    [false, false, true, true, true],
  );
  for (const { reply } of answers) t.deepEqual(reply, { status: 201, data: { made: true } });
  // Without waiting, no place is needed.
  t.true((await answerOnce(deps, { ...callOf('one'), waits: new FairShares(0) }, never)).replayed);
});
