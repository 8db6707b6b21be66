/*
 * Bytes that guests send to the egress proxy and that no library reads first: the beginnings of
 * connections to port 443, and questions for names.
 */
import assert from 'node:assert';
import { refuseQuestion } from '../../../agent/network/egress/name-question.ts';
import {
  joinClientHello,
  serverNameOf,
  UNREADABLE,
} from '../../../agent/network/egress/client-hello.ts';
import { inRecords, tlsRecord } from '../../helpers/client-hellos.ts';
import type { Target } from '../target.ts';

const BYTES_MAX = 16 * 1024;

/** A ClientHello of TLS 1.2 with these extensions. */
function hello(extensions: Buffer): Buffer {
  const lengths = Buffer.alloc(2);
  lengths.writeUInt16BE(extensions.length);
  const fixed = [Buffer.from([3, 3]), Buffer.alloc(32), Buffer.from([0, 0, 2, 0x13, 1, 1, 0])];
  const body = Buffer.concat([...fixed, lengths, extensions]);
  const head = Buffer.from([1, 0, 0, 0]);
  head.writeUIntBE(body.length, 1, 3);
  return Buffer.concat([head, body]);
}

/** The extension that names a host (RFC 6066, 3). */
function serverName(name: string): Buffer {
  const head = Buffer.from([0, 0, 0, 0, 0, 0, 0, 0, 0]);
  head.writeUInt16BE(name.length + 5, 2);
  head.writeUInt16BE(name.length + 3, 4);
  head.writeUInt16BE(name.length, 7);
  return Buffer.concat([head, Buffer.from(name, 'latin1')]);
}

const named = hello(serverName('good.test'));

const tlsRecords: Target = {
  name: 'tls-records',
  seeds: [
    tlsRecord(named),
    inRecords(named, [1, 50]),
    tlsRecord(hello(Buffer.alloc(0))),
    Buffer.concat([tlsRecord(named), tlsRecord(Buffer.from([1]), 0x14)]),
  ],
  words: ['\u0016\u0003\u0001\0\u0004', '\u0001\0\0\u0002', '\0\0\0\u000e', 'evil.test', '\u0014'],
  async run(input) {
    const found = joinClientHello(input);
    // More bytes change nothing about what could be told from fewer.
    for (const length of [1, 5, 9, input.length >> 1]) {
      const part = input.subarray(0, length);
      const told = joinClientHello(part);
      if (typeof told === 'number') assert(told > part.length && told <= BYTES_MAX);
      else assert.deepStrictEqual(found, told);
    }
    // Nothing can be told before as many bytes have come as it asks for.
    if (typeof found === 'number') {
      assert(found > input.length && found <= BYTES_MAX);
      const missing = Buffer.alloc(found - 1 - input.length);
      assert.strictEqual(joinClientHello(Buffer.concat([input, missing])), found);
    }
    if (typeof found === 'number' || found === UNREADABLE) return;
    assert.strictEqual(found.length, 4 + found.readUIntBE(1, 3));
    const cuts = [1, 4, found.length >> 1].filter((cut) => cut < found.length);
    assert.deepStrictEqual(joinClientHello(inRecords(found, [...new Set(cuts)])), found);
    const name = await serverNameOf(found);
    if (name !== undefined && name !== UNREADABLE) assert.match(name, /^[a-z0-9_.-]+$/u);
  },
};

const names: Target = {
  name: 'name-questions',
  seeds: [
    'ab\u0001\0\0\u0001\0\0\0\0\0\0\u0004leak\u0004test\0\0\u0001\0\u0001',
    'ab\u0001\0\0\u0001\0\0\0\0\0\u0001\0\0\u0010\0\u0003\0\0)\u0010\0\0\0\0\0\0\0',
  ],
  words: ['\u0004test', '\0\0\u0001\0\u0001', '\u00c0\u000c', '\u003f'],
  run(input) {
    const refusal = refuseQuestion(input);
    if (refusal === undefined) return;
    const { answer, name } = refusal;
    assert(answer.length <= input.length && answer.length <= 12 + 255 + 4);
    assert.strictEqual(answer.readUInt16BE(0), input.readUInt16BE(0));
    assert.deepStrictEqual(answer.subarray(12), input.subarray(12, answer.length));
    assert((answer[2] ?? 0) >= 0x80 && (answer[3] ?? 0) % 16 !== 0, 'a refusal');
    assert.strictEqual(refuseQuestion(answer), undefined, 'refusals are not answered');
    if (name !== undefined) assert.match(name, /^[a-z0-9_.?-]{0,254}$/u);
  },
};

export const egressTargets: readonly Target[] = [tlsRecords, names];
