/* Frames between parts of the system, and from guests and searches, which may be hostile. */
import assert from 'node:assert';
import { crc32 } from 'node:zlib';
import { SearchOutput } from '../../../agent/commands/search-output.ts';
import { FrameSplitter } from '../../../agent/machines/guest-link/frame-splitter.ts';
import { stuff } from '../../../agent/machines/guest-link/byte-stuffing.ts';
import { AppError } from '../../../shared/errors.ts';
import {
  decodeGuestFrame,
  decodeHostFrame,
  decodeProcessRecords,
  encodeGuestFrame,
  encodeHostFrame,
  GUEST_LIMITS,
  guestFrames as guestFrameShapes,
} from '../../../agent/machines/guest-link/guest-protocol.ts';
import { JobSeal } from '../../../shared/jobs/job-seal.ts';
import { parseJob } from '../../../shared/jobs/jobs.ts';
import {
  decodeAgentFrame,
  decodeControlFrame,
  encodeFrame,
} from '../../../shared/links/stream-protocol.ts';
import { cut, isOwnError, type Refusal, type Target, unlessRefused } from '../target.ts';

function splitFrames(input: Buffer, pieceBytes: number): Buffer[] | undefined {
  const splitter = new FrameSplitter();
  return unlessRefused(isOwnError, () =>
    [...cut(input, pieceBytes)].flatMap((piece) =>
      [...splitter.push(piece)].map((f) => Buffer.from(f)),
    ),
  );
}

const guestKinds = Object.values(guestFrameShapes).map(({ kind }) => String.fromCodePoint(kind));
const ZERO = Buffer.of(0);
const guestSeeds = [
  encodeGuestFrame({ type: 'done', request: 7 }),
  encodeGuestFrame({ type: 'started', request: 1, pid: 42 }),
  encodeGuestFrame({ type: 'failed', request: 2, code: 1, errno: 2, step: 'exec' }),
].map((frame) => Buffer.concat([ZERO, frame]));

/** Wraps the input in a frame with a valid checksum, which random mutations never produce. */
function framed(input: Buffer): Buffer {
  const checksum = Buffer.alloc(4);
  checksum.writeUInt32LE(crc32(input));
  return withoutEnd(stuff(Buffer.concat([input, checksum])));
}

/** The bytes before the zero that ends a frame. */
const withoutEnd = (stuffed: Buffer): Buffer => stuffed.subarray(0, -1);

function checkGuestFrame(stuffed: Buffer): void {
  const told = unlessRefused(isOwnError, () => decodeGuestFrame(stuffed));
  if (told !== undefined)
    assert.deepStrictEqual(decodeGuestFrame(withoutEnd(encodeGuestFrame(told))), told);
  const asked = unlessRefused(isOwnError, () => decodeHostFrame(stuffed));
  if (asked !== undefined)
    assert.deepStrictEqual(decodeHostFrame(withoutEnd(encodeHostFrame(asked))), asked);
}

const guestFrames: Target = {
  name: 'guest-frames',
  seeds: guestSeeds,
  executions: 200,
  words: [...guestKinds, '\0', '\u0001', '\u0002'],
  run(whole) {
    const input = whole.subarray(0, 2048);
    const frames = splitFrames(input, Math.max(1, input.length));
    assert.deepStrictEqual(splitFrames(input, 5), frames);
    unlessRefused(isOwnError, () => decodeProcessRecords(input));
    for (const stuffed of frames ?? []) checkGuestFrame(stuffed);
    if (input.length < GUEST_LIMITS.frameMax) checkGuestFrame(framed(input));
  },
};

const JOB_ID = '01234567-89ab-4def-8123-456789abcdef';

const linkFrames: Target = {
  name: 'link-frames',
  seeds: [
    encodeFrame({ type: 'accepted', jobId: JOB_ID }),
    encodeFrame({ type: 'cancel', jobId: JOB_ID }),
    encodeFrame({ type: 'result', jobId: JOB_ID, result: {}, body: [3, 2] }, [
      Buffer.from('abcde'),
    ]),
    encodeFrame({ type: 'error', jobId: JOB_ID, code: 'timeout', message: 'late' }),
  ],
  words: [
    '"type":"register"',
    '"type":"heartbeat"',
    '"load":{',
    '"body":[',
    '{}',
    '__proto__',
    ',',
  ],
  run(input) {
    const told = unlessRefused(isOwnError, () => decodeAgentFrame(input));
    if (told !== undefined) {
      assert.deepStrictEqual(decodeAgentFrame(encodeFrame(told.frame, told.body)), told);
    }
    unlessRefused(isOwnError, () => decodeControlFrame(input));
  },
};

const isAppError: Refusal = (error) => error instanceof AppError && error.code === 'bad_request';

const seal = new JobSeal(['0123456789abcdef0123456789abcdef']);
const job = (kind: string, payload: object): string =>
  JSON.stringify({
    ...{ id: JOB_ID, kind, payload, replyTo: 'node-aaaaaaaaaaaa', requestId: 'r' },
    deadlineAt: 1,
  });
const disk = { accountId: `acct-${'0'.repeat(16)}`, diskId: `dsk-${'0'.repeat(16)}` };

const mount = {
  ...{ diskId: disk.diskId, path: '', subdirectory: '', readOnly: false },
  ...{ checkouts: ['a'], checkoutWaitMs: 0 },
};

const jobEnvelopes: Target = {
  name: 'job-envelopes',
  seeds: [
    job('disk.create', disk),
    job('disk.stat', { ...disk, key: 'a' }),
    job('sandbox.delete', { accountId: disk.accountId, sandboxId: JOB_ID }),
    job('exec.run', { accountId: disk.accountId, mounts: [mount], command: 'true' }),
    job('sandbox.exec', {
      ...{ accountId: disk.accountId, sandboxId: JOB_ID, execId: JOB_ID, command: 'true' },
      ...{ environment: { A: 'b' }, hasTerminal: false, waitMs: 0 },
    }),
  ],
  words: [
    ...[
      '"kind":"exec.run"',
      '"kind":"grep.run"',
      '"kind":"sandbox.create"',
      '"payload":{',
      '__proto__',
    ],
    ...['"mounts":[', '"sealed":"', 'null', '[]', '{}', '1e999', '"constructor":', '\\u0000'],
  ],
  run(input) {
    let data: unknown;
    try {
      data = JSON.parse(input.toString('utf8'));
    } catch {
      data = { sealed: input.toString('utf8') };
    }
    const parsed = unlessRefused(isAppError, () => parseJob(data));
    if (parsed !== undefined) assert.deepStrictEqual(parseJob(structuredClone(parsed)), parsed);
    const opened = unlessRefused(isAppError, () => seal.open('exec-host', JOB_ID, data));
    assert.strictEqual(opened, undefined, 'a job that nobody sealed was opened');
  },
};

function searched(input: Buffer, pieceBytes: number) {
  let closed = 0;
  const onClosed = (): void => void (closed += 1);
  const output = new SearchOutput({ prefix: 'dir/', maxResults: 3, onClosed });
  for (const piece of cut(input, pieceBytes)) output.write(piece);
  const matches: unknown = JSON.parse(output.takeMatches().toString('utf8'));
  assert(Array.isArray(matches) && matches.length <= 3);
  assert(closed <= 1);
  const { statistics, problem, reason } = output;
  return { matches: matches as unknown[], statistics, problem, reason, closed };
}

/** A frame as search.c writes it. */
function searchFrame(kind: number, body: Buffer): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt8(kind);
  head.writeUInt32LE(body.length, 1);
  return Buffer.concat([head, body]);
}

const searchOutput: Target = {
  name: 'search-output',
  seeds: [
    searchFrame(2, Buffer.alloc(32)),
    searchFrame(3, Buffer.from('a problem')),
    searchFrame(4, Buffer.of(0)),
    searchFrame(1, Buffer.concat([Buffer.alloc(13, 1), Buffer.from('path and text')])),
  ],
  words: ['\u0001', '\u0002', '\u0004\u0001\0\0\0\0', '\0\0\0\0', '\u00ff\u00ff'],
  run(input) {
    assert.deepStrictEqual(searched(input, 7), searched(input, Math.max(1, input.length)));
  },
};

export const frameTargets: readonly Target[] = [
  guestFrames,
  linkFrames,
  jobEnvelopes,
  searchOutput,
];
