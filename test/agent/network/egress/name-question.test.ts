import test from 'ava';
import { refuseQuestion } from '../../../../agent/network/egress/name-question.ts';

const [A, IN, CHAOS] = [1, 1, 3];

/** A question as a resolver sends it, with bytes behind it. */
function question(name: string, { type = A, of = IN, flags = 0x0100, behind = '' } = {}): Buffer {
  const head = Buffer.alloc(12);
  head.writeUInt16BE(0xabcd, 0);
  head.writeUInt16BE(flags, 2);
  head.writeUInt16BE(1, 4);
  const labels = name === '' ? [] : name.split('.');
  const encoded = labels.map((label) =>
    Buffer.from([label.length, ...Buffer.from(label, 'latin1')]),
  );
  const end = Buffer.from([0, 0, type, 0, of]);
  return Buffer.concat([head, ...encoded, end, Buffer.from(behind, 'latin1')]);
}

test('every name is answered with NXDOMAIN, and its question', (t) => {
  for (const name of ['leak.test', 'a', '', 'x'.repeat(63), '1.2.0.192.in-addr.arpa']) {
    const asked = question(name, { behind: 'an option' });
    const refusal = refuseQuestion(asked);
    t.is(refusal?.name, name);
    const answer = refusal?.answer ?? Buffer.alloc(12);
    t.is(answer.readUInt16BE(0), 0xabcd);
    t.is(answer.readUInt16BE(2), 0x8183); // An answer, recursion desired and there, NXDOMAIN.
    t.deepEqual(
      [4, 6, 8, 10].map((at) => answer.readUInt16BE(at)),
      [1, 0, 0, 0],
    );
    t.deepEqual(answer.subarray(12), asked.subarray(12, asked.length - 'an option'.length));
  }
  t.is(refuseQuestion(question('version.bind', { type: 16, of: CHAOS }))?.answer[3], 0x85);
  t.is(refuseQuestion(question('a.test', { flags: 0x2800 }))?.answer[3], 0x84);
});

test('a name is told in lower case, without what no host has', (t) => {
  t.is(refuseQuestion(question('LEAK.Test'))?.name, 'leak.test');
  t.is(refuseQuestion(question('a b.\u001b[2J.\u00e9_-.test'))?.name, 'a?b.??2j.?_-.test');
});

test('a packet that is not a DNS query is not counted', (t) => {
  const whole = question('leak.test');
  const wrong = {
    'an answer': question('leak.test', { flags: 0x8100 }),
    'no head': whole.subarray(0, 11),
    'no end': whole.subarray(0, whole.length - 1),
    'a label without an end': whole.subarray(0, 15),
    'a pointer': Buffer.concat([whole.subarray(0, 12), Buffer.from([0xc0, 12, 0, A, 0, IN])]),
    'a name without a bound': question(Array.from({ length: 128 }, () => 'ab').join('.')),
    'no name': Buffer.concat([whole.subarray(0, 4), Buffer.from([0, 0]), whole.subarray(6)]),
  };
  for (const [what, message] of Object.entries(wrong)) {
    const refusal = refuseQuestion(message);
    t.is(refusal?.name, undefined, what);
    if (refusal !== undefined) t.is(refusal.answer.length, 12, what);
  }
  t.is(refuseQuestion(wrong['an answer']), undefined);
});
