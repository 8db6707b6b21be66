import test from 'ava';
import {
  array,
  assert,
  asyncProperty,
  nat,
  oneof,
  property,
  stringMatching,
} from '../../../helpers/fast-check.ts';
import { indexPatterns, redactText, Redactor } from '../../../../agent/network/egress/redactor.ts';
import { secretPatterns } from '../../../../agent/network/egress/secret-patterns.ts';
import { FakeTime } from '../../../helpers/fake-time.ts';

function redact(patterns: readonly string[], chunks: readonly Buffer[]): Buffer {
  const index = indexPatterns(patterns);
  if (index === undefined) return Buffer.concat(chunks);
  const redactor = new Redactor(index);
  const out: Buffer[] = [];
  redactor.on('data', (chunk: Buffer) => out.push(chunk));
  for (const chunk of chunks) redactor.write(chunk);
  redactor.end();
  while (redactor.read() !== null);
  return Buffer.concat(out);
}

function split(bytes: Buffer, cuts: readonly number[]): Buffer[] {
  const places = [...new Set(cuts.map((cut) => cut % (bytes.length + 1)))].toSorted(
    (a, b) => a - b,
  );
  return [0, ...places].map((from, index) => bytes.subarray(from, places[index] ?? bytes.length));
}

const secret = stringMatching(/^[ab]{8,12}$/u);

/** The bytes that are in a secret, as a list of the bytes of each. */
const placesOf = (patterns: readonly string[], text: string): number[][] =>
  patterns.flatMap((pattern) =>
    Array.from({ length: text.length }, (_, at) => at)
      .filter((at) => text.startsWith(pattern, at))
      .map((at) => Array.from(pattern, (_, index) => at + index)),
  );

test('A secret is masked wherever chunks are cut, and nothing else is changed', (t) => {
  assert(
    property(
      array(secret, { minLength: 1, maxLength: 3 }),
      array(oneof(secret, stringMatching(/^[abc]{0,6}$/u)), { maxLength: 8 }),
      array(nat(), { maxLength: 6 }),
      (patterns, parts, cuts) => {
        const text = `${parts.join('')}.`;
        const got = redact(patterns, split(Buffer.from(text), cuts)).toString();
        const masked = new Set(placesOf(patterns, text).flat());
        const expected = text
          .split('')
          .map((each, index) => (masked.has(index) ? '*' : each))
          .join('');
        return got === expected;
      },
    ),
    { numRuns: 2000 },
  );
  t.pass();
});

/**
 * Sends chunks with a long pause after each.
 * @returns the text that had come by then, after each
 */
async function redactSlowly(
  time: FakeTime,
  patterns: readonly string[],
  chunks: readonly Buffer[],
): Promise<string[]> {
  const index = indexPatterns(patterns);
  if (index === undefined) throw new Error('give patterns');
  const redactor = new Redactor(index);
  const texts: string[] = [];
  let text = '';
  redactor.on('data', (chunk: Buffer) => {
    text += chunk.toString('latin1');
  });
  for (const chunk of chunks) {
    redactor.write(chunk);
    await time.pass(60_000, 60_000);
    texts.push(text);
  }
  redactor.destroy();
  return texts;
}

test.serial('A message that ends like a secret begins is whole after a pause', async (t) => {
  using time = new FakeTime();
  const chunks = ['say yes', 'k-live-0123', 'say sk-', 'live-0123', 'say sk-l', 'o'].map((each) =>
    Buffer.from(each),
  );
  t.deepEqual(await redactSlowly(time, ['sk-live-0123'], chunks), [
    'say yes',
    'say yes***********',
    'say yes***********say sk-',
    'say yes***********say sk-*********',
    // More of a secret is not given away, however long it takes.
    'say yes***********say sk-*********say ',
    'say yes***********say sk-*********say sk-lo',
  ]);
});

test.serial('Pauses give away no more of a secret than its first three bytes', async (t) => {
  using time = new FakeTime();
  await assert(
    asyncProperty(
      array(secret, { minLength: 1, maxLength: 3 }),
      array(oneof(secret, stringMatching(/^[abc]{0,6}$/u)), { maxLength: 6 }),
      array(nat(), { maxLength: 6 }),
      async (patterns, parts, cuts) => {
        const text = `${parts.join('')}.`;
        const chunks = split(Buffer.from(text), cuts);
        const texts = await redactSlowly(time, patterns, chunks);
        const secrets = placesOf(patterns, text);
        const masked = new Set(secrets.flat());
        let length = 0;
        for (const [index, got] of texts.entries()) {
          length += chunks[index]?.length ?? 0;
          const sent = text.slice(0, length);
          const mayBegin = patterns.some((each) =>
            Array.from(each, (_, end) => each.slice(0, end + 1)).some(
              (beginning) => beginning.length > 3 && sent.endsWith(beginning),
            ),
          );
          if (!mayBegin && got.length !== length) return false;
        }
        const whole = texts.at(-1) ?? '';
        return (
          whole.length === text.length &&
          whole
            .split('')
            .every((each, at) => each === text[at] || (each === '*' && masked.has(at))) &&
          secrets.every((places) => places.slice(3).every((at) => whole[at] === '*'))
        );
      },
    ),
    { numRuns: 200 },
  );
  t.pass();
});

test('A long beginning of a secret at the end of a body is masked', (t) => {
  const got = redact(['secret-token-1234'], [Buffer.from('x secret-token')]);
  t.is(got.toString(), `x ${'*'.repeat('secret-token'.length)}`);
  t.is(redact(['secret-token-1234'], [Buffer.from('a secret-t')]).toString(), 'a ********');
  t.is(redact(['secret-token-1234'], [Buffer.from('a secre')]).toString(), 'a secre');
});

test('Bytes that cannot begin a secret are passed on at once', (t) => {
  const index = indexPatterns(['secret-token']);
  if (index === undefined) return t.fail();
  const redactor = new Redactor(index);
  redactor.write(Buffer.from('data: 1\n\n'));
  t.is(String(redactor.read()), 'data: 1\n\n');
});

test('A secret is recognised in the forms in which servers print it', (t) => {
  const value = `Bearer s3cr3t/"key"+with&signs<>`;
  const token = value.slice('Bearer '.length);
  const patterns = secretPatterns({ headers: { Authorization: value }, forwardUrl: undefined });
  const index = indexPatterns(patterns);
  const forms = [
    value,
    token,
    JSON.stringify({ token }),
    `?token=${encodeURIComponent(token)}`,
    new URLSearchParams({ token: value }).toString(),
    `<b>${token.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')}</b>`,
    Buffer.from(token).toString('hex'),
    ...['', 'x', 'xx'].map((before) => Buffer.from(`${before}${token}`).toString('base64')),
    Buffer.from(`{"authorization": "${token}"}`).toString('base64url'),
  ];
  for (const form of forms) t.regex(redactText(index, form), /\*{8}/u, form);
  for (const form of forms) t.notRegex(redactText(index, form), /s3cr3t|czNjcjN0|73336372/u, form);
});

test('The password of basic credentials is a secret, too', (t) => {
  const credentials = Buffer.from('user:opensesame').toString('base64');
  const headers = { authorization: `Basic ${credentials}` };
  const index = indexPatterns(secretPatterns({ headers, forwardUrl: undefined }));
  t.is(redactText(index, 'you are user:opensesame'), 'you are ***************');
  t.is(redactText(index, 'password opensesame'), 'password **********');
});

test('What of a forward_url may be a token is a secret; common words are not', (t) => {
  const forwardUrl = 'https://hooks.test/services/T00000000000000000000/v1?key=abcdefgh12';
  const index = indexPatterns(secretPatterns({ headers: {}, forwardUrl }));
  t.is(redactText(index, 'no route /services/v1'), 'no route /services/v1');
  t.notRegex(redactText(index, `no route ${forwardUrl}`), /T0000|abcdefgh12/u);
});

test('A body that repeats a secret at each of its bytes is masked', (t) => {
  const bytes = 256 * 1024;
  const got = redact(['a'.repeat(8), 'a'.repeat(9)], [Buffer.alloc(bytes, 'a'), Buffer.from('b')]);
  t.is(got.toString(), `${'*'.repeat(bytes)}b`);
});

test('Secrets that begin alike and repeat themselves are found in a text that does, too', (t) => {
  const repeated = 'abcdefghz'.repeat(900);
  const others = Array.from({ length: 60 }, (_, index) => `abcdefgh${'X'.repeat(index + 1)}`);
  const text = 'abcdefghz'.repeat(20_000);
  const secrets = [`${repeated}Q`, ...others];
  const got = redact(secrets, split(Buffer.from(`${text}Q abcdefghXX.`), [7, 70_001, 150_000]));
  const plain = text.length - repeated.length;
  const masked = '*'.repeat(repeated.length + 1);
  t.is(got.toString(), `${text.slice(0, plain)}${masked} ${'*'.repeat(10)}.`);
});
