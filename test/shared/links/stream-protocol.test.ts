import test from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import { errorCodes } from '../../../shared/errors.ts';
import {
  type AgentFrame,
  type ControlFrame,
  decodeAgentFrame,
  decodeControlFrame,
  encodeFrame,
} from '../../../shared/links/stream-protocol.ts';
import { jsonValues } from '../../helpers/json-values.ts';
import { unicodeText } from '../../helpers/unicode-text.ts';

const text = unicodeText({ maxLength: 60 });
const fieldName = fc.string().filter((name) => name !== '__proto__');
const jobId = fc.string({ unit: 'grapheme', minLength: 1, maxLength: 20 });
const hostId = fc.stringMatching(/^host-[0-9a-f]{12}$/u);
const load = fc.record({
  execSlots: fc.nat(),
  execsRunning: fc.nat(),
  execsWaiting: fc.nat(),
  storageLow: fc.boolean(),
  sandboxes: fc.record({
    isEnabled: fc.boolean(),
    memoryMib: fc.nat(),
    memoryMibUsed: fc.nat(),
    vcpus: fc.nat(),
    vcpusUsed: fc.nat(),
    isLow: fc.boolean(),
  }),
  draining: fc.boolean(),
});
const type = <T extends string>(value: T) => fc.constant(value);

const bodylessFrame: fc.Arbitrary<AgentFrame> = fc.oneof(
  fc.record({
    type: type('register'),
    internalUrl: fc.webUrl({ validSchemes: ['http'] }),
    hostId,
    clusterId: text,
    region: text,
    publicUrl: fc.webUrl({ validSchemes: ['http', 'https'] }),
    load,
  }),
  fc.record({ type: type('heartbeat'), load }),
  fc.record({ type: type('accepted'), jobId }),
  fc.record({
    type: type('error'),
    jobId,
    code: fc.constantFrom(...errorCodes),
    message: text,
  }),
);
const result = fc
  .record({
    jobId,
    result: fc.dictionary(fieldName, jsonValues),
    parts: fc.array(fc.uint8Array({ maxLength: 200 }), { maxLength: 2 }),
  })
  .map(({ parts, ...rest }) => {
    const body = parts.map((part) => Buffer.from(part));
    const lengths = body.map((part) => part.length);
    const frame: AgentFrame = { type: 'result', ...rest, body: lengths };
    return { frame, body };
  });
const agentMessage = fc.oneof(
  result,
  bodylessFrame.map((frame) => ({ frame, body: [] as Buffer[] })),
);
const controlFrame: fc.Arbitrary<ControlFrame> = fc.oneof(
  fc.record({ type: type('registered'), nodeId: text, connectionKeys: text }),
  fc.record({ type: type('cancel'), jobId }),
);

const plain = (value: unknown): unknown => JSON.parse(JSON.stringify(value));

test('an agent frame survives encoding and decoding', (t) => {
  fc.assert(
    fc.property(agentMessage, ({ frame, body }) => {
      const decoded = decodeAgentFrame(encodeFrame(frame, body));
      t.deepEqual(plain(decoded.frame), plain(frame));
      t.deepEqual(decoded.body, body);
    }),
  );
  t.pass();
});

test('a control frame survives encoding and decoding', (t) => {
  fc.assert(
    fc.property(controlFrame, (frame) => {
      t.deepEqual(decodeControlFrame(encodeFrame(frame)), frame);
    }),
  );
  t.pass();
});

const refuses = (decode: (message: Buffer) => unknown, message: Buffer): boolean => {
  try {
    decode(message);
    return false;
  } catch (error) {
    if (error instanceof Error) return true;
    throw error;
  }
};

test('a frame that was cut off or extended is refused', (t) => {
  fc.assert(
    fc.property(agentMessage, fc.nat(), fc.uint8Array({ minLength: 1 }), (message, at, more) => {
      const bytes = encodeFrame(message.frame, message.body);
      t.true(refuses(decodeAgentFrame, bytes.subarray(0, at % bytes.length)));
      t.true(refuses(decodeAgentFrame, Buffer.concat([bytes, more])));
    }),
  );
});

test('decoding any bytes returns a frame or throws an Error', (t) => {
  const header = fc.oneof(
    fc.json(),
    text,
    bodylessFrame.map((frame) => JSON.stringify(frame)),
  );
  const framed = fc.tuple(header, fc.uint8Array()).map(([head, rest]) => {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(Buffer.byteLength(head));
    return Buffer.concat([length, Buffer.from(head), rest]);
  });
  const bytes = fc.uint8Array().map((array) => Buffer.from(array));
  fc.assert(
    fc.property(fc.oneof(bytes, framed), (message) => {
      refuses(decodeAgentFrame, message);
      refuses(decodeControlFrame, message);
    }),
    { numRuns: 500 },
  );
  t.pass();
});

const refused = test.macro({
  exec(t, frame: unknown) {
    t.true(refuses(decodeAgentFrame, encodeFrame(frame as AgentFrame)));
    t.true(refuses(decodeControlFrame, encodeFrame(frame as ControlFrame)));
  },
  title: (_given, frame: unknown) => `refused: ${JSON.stringify(frame)}`,
});

test(refused, null);
test(refused, []);
test(refused, 'heartbeat');
test(refused, {});
test(refused, { type: 'unknown' });
test(refused, { type: 7 });
test(refused, { type: 'accepted' });
test(refused, { type: 'accepted', jobId: '' });
test(refused, { type: 'cancel', jobId: 'x'.repeat(65) });
test(refused, { type: 'error', jobId: 'a', code: 'No such code', message: '' });
test(refused, { type: 'heartbeat', load: {} });
test(refused, { type: 'result', jobId: 'a', result: {}, body: [-1] });
test(refused, { type: 'result', jobId: 'a', result: {}, body: [0.5] });
test(refused, { type: 'result', jobId: 'a', result: {}, body: [0, 0, 0] });
test(refused, { type: 'result', jobId: 'a', result: [], body: [] });
test(refused, { type: 'registered', nodeId: 'a' });
test(refused, { type: 'registered', nodeId: 'a', connectionKeys: 'x'.repeat(2049) });
test(refused, { type: '__proto__' });

test('a host cannot register with a public URL to which no path can be appended', (t) => {
  const urls = ['', 'ws://a', 'http://', 'http:///a', 'http://a?b', 'http://a/#b', 'http://a b'];
  fc.assert(
    fc.property(load, fc.constantFrom(...urls), (present, publicUrl) => {
      const frame: AgentFrame = {
        ...{ type: 'register', hostId: 'host-0123456789ab', clusterId: '', region: '' },
        ...{ internalUrl: 'http://a', publicUrl, load: present },
      };
      t.true(refuses(decodeAgentFrame, encodeFrame(frame)), publicUrl);
      const valid = encodeFrame({ ...frame, publicUrl: 'https://a:1/b/' });
      t.false(refuses(decodeAgentFrame, valid));
    }),
  );
});

test('a frame whose header is nested too deeply is refused on either side', (t) => {
  const header = Buffer.from('['.repeat(2_000_000));
  const length = Buffer.alloc(4);
  length.writeUInt32BE(header.length);
  const message = Buffer.concat([length, header]);
  t.throws(() => decodeAgentFrame(message), { instanceOf: SyntaxError });
  t.throws(() => decodeControlFrame(message), { instanceOf: SyntaxError });
});
