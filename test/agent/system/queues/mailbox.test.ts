import { setImmediate } from 'node:timers/promises';
import test from 'ava';
import * as fc from '../../../helpers/fast-check.ts';
import { Mailbox } from '../../../../agent/system/queues/mailbox.ts';
import { SYSTEM_LIMITS } from '../../../../agent/system/limits.ts';

test('messages are handled one at a time, in the order in which they were sent', async (t) => {
  const property = fc.asyncProperty(fc.array(fc.nat(3), { maxLength: 50 }), async (turns) => {
    const mailbox = new Mailbox();
    const handled: number[] = [];
    let atWork = 0;
    const sent = turns.map((pauses, index) =>
      mailbox.send(async () => {
        atWork += 1;
        t.is(atWork, 1);
        for (let i = 0; i < pauses; i += 1) await setImmediate();
        handled.push(index);
        atWork -= 1;
        return index;
      }),
    );
    t.deepEqual(await Promise.all(sent), [...turns.keys()]);
    t.deepEqual(handled, [...turns.keys()]);
  });
  await fc.assert(property, { numRuns: 30 });
});

test('a message that fails tells its sender and nobody else', async (t) => {
  const mailbox = new Mailbox();
  const failing = mailbox.send(() => Promise.reject(new Error('broken')));
  const next = mailbox.send(() => Promise.resolve('fine'));
  await t.throwsAsync(failing, { message: 'broken' });
  t.is(await next, 'fine');
});

test('a full mailbox refuses, and takes messages again when there is room', async (t) => {
  const mailbox = new Mailbox();
  const gate = Promise.withResolvers<void>();
  const sent = Array.from({ length: SYSTEM_LIMITS.mailboxLengthMax }, () =>
    mailbox.send(() => gate.promise),
  );
  await t.throwsAsync(
    mailbox.send(() => Promise.resolve()),
    { code: 'no_capacity' },
  );
  gate.resolve();
  await Promise.all(sent);
  await t.notThrowsAsync(mailbox.send(() => Promise.resolve()));
});
