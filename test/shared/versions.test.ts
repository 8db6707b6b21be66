/* Parts of this version and of recorded ones understand each other, and each other's journals. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { Journal } from '../../agent/system/journal/journal.ts';
import { JobSeal } from '../../shared/jobs/job-seal.ts';
import { parseJob } from '../../shared/jobs/jobs.ts';
import { assertCompatible } from '../../shared/links/protocol-versions.ts';
import {
  type AgentFrame,
  type ControlFrame,
  decodeAgentFrame,
  decodeControlFrame,
  encodeFrame,
} from '../../shared/links/stream-protocol.ts';
import { type JsonSchema, SchemaDocument, SchemaValues } from '../helpers/schema-values.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';
import {
  loadJournal,
  messagesOfToday,
  readJournal,
  type VersionRecord,
} from '../helpers/version-records.ts';

const folder = join(import.meta.dirname, '../fixtures/versions');
const versions = readdirSync(folder);
const read = (version: string, file: string): string =>
  readFileSync(join(folder, version, file), 'utf8');
const withMessages = versions.filter((version) =>
  readdirSync(join(folder, version)).includes('messages.json'),
);

/** A frame's bytes, with a body as long as its header says. */
function bytesOf(frame: unknown): Buffer {
  const { body = [] } = frame as { body?: number[] };
  return encodeFrame(
    frame as AgentFrame,
    body.map((length) => Buffer.alloc(length)),
  );
}

/**
 * Fields that an older agent refuses with the whole job, as it must not ignore them. Agents are
 * upgraded before control, so only a cluster in the middle of an upgrade meets that.
 */
const REFUSED_BY_OLDER = /\begress: (?:.*,)?dns\b/u;

/** The value without fields that only a newer version knows, as JSON has it. */
const asJson = (value: unknown): unknown => JSON.parse(JSON.stringify(value));

for (const version of withMessages) {
  const recorded = JSON.parse(read(version, 'messages.json')) as VersionRecord;

  test(`frames of agents of version ${version} are read as they were sent`, (t) => {
    for (const { name, samples } of recorded.agentFrames) {
      for (const frame of samples) {
        t.deepEqual(asJson(decodeAgentFrame(bytesOf(frame)).frame), frame, name);
      }
    }
  });

  test(`frames of control nodes of version ${version} are read as they were sent`, (t) => {
    for (const { name, samples } of recorded.controlFrames) {
      for (const frame of samples) {
        const sent = encodeFrame(frame as ControlFrame);
        t.deepEqual(asJson(decodeControlFrame(sent)), frame, name);
      }
    }
  });

  test(`jobs of control nodes of version ${version} are read as they were sent`, (t) => {
    for (const { name, samples } of recorded.jobs) {
      for (const job of samples) t.deepEqual(asJson(parseJob(job)), job, name);
    }
    const { secret, queue, sealed } = recorded.sealed;
    const job = recorded.jobs.find(({ name }) => name === 'exec.run')?.samples[0] as { id: string };
    t.deepEqual(asJson(new JobSeal([secret]).open(queue, job.id, { sealed })), job);
  });

  const today = messagesOfToday();
  const tags = { agentFrames: 'type', controlFrames: 'type', jobs: 'kind' } as const;
  for (const group of ['agentFrames', 'controlFrames', 'jobs'] as const) {
    test(`every message of today's ${group} can be read by version ${version}`, (t) => {
      for (const { name, schema } of recorded[group]) {
        const own = today[group].find(
          ({ properties }) => properties?.[tags[group]]?.const === name,
        ) as JsonSchema;
        t.truthy(own, `${name} is still there`);
        const reader = new SchemaDocument(schema);
        const { valid } = new SchemaValues(new SchemaDocument(own)).samples(own);
        t.true(valid.length > 0);
        for (const { value, why } of valid) {
          const isKnown = reader.isValid(schema, value);
          t.true(isKnown || REFUSED_BY_OLDER.test(why), `${name}: ${why}`);
        }
        const { valid: former } = new SchemaValues(reader).samples(schema);
        const writer = new SchemaDocument(own);
        for (const { value, why } of former) t.true(writer.isValid(own, value), `${name}: ${why}`);
      }
    });
  }
}

for (const version of versions) {
  test(`the journal of version ${version} is migrated with all that it holds`, async (t) => {
    await using directory = await temporaryDirectory();
    const path = join(directory.path, 'journal.sqlite');
    loadJournal(path, read(version, 'journal.sql'));
    t.like(await readJournal(path), JSON.parse(read(version, 'journal.json')) as object);
  });
}

test('a journal of a newer version is refused with what to do, and stays as it is', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'journal.sqlite');
  const dump = `${read(versions.at(-1) ?? '', 'journal.sql')} CREATE TABLE of_tomorrow (id TEXT);`;
  loadJournal(path, `${dump} PRAGMA user_version = 1000;`);
  const before = readFileSync(path);
  const message =
    /^the journal has version 1000, and this agent knows \d+ at most: it was written by a newer agent/u;
  await t.throwsAsync(Journal.open(path), { message });
  await t.throwsAsync(Journal.open(path), { message });
  t.deepEqual(readFileSync(path).subarray(100), before.subarray(100));
});

test('parts work together when they have a version of the protocol in common', (t) => {
  const own = { oldest: 2, newest: 3 };
  for (const [oldest, newest] of [
    [1, 2],
    [2, 2],
    [3, 9],
    [1, 9],
  ] as const) {
    t.notThrows(() => assertCompatible({ oldest, newest }, own));
  }
  t.throws(() => assertCompatible(undefined, own), {
    message: 'the other side speaks version 1, this node versions 2 to 3: upgrade the other side',
  });
  t.throws(() => assertCompatible({ oldest: 4, newest: 5 }, own), {
    message: /upgrade this node$/u,
  });
});

test('an error code of a newer agent is a failure, not the end of its link', (t) => {
  const frame = { type: 'error', jobId: 'a', code: 'of_tomorrow', message: 'x' };
  const { frame: taken } = decodeAgentFrame(encodeFrame(frame as unknown as AgentFrame));
  t.like(taken, { code: 'internal_server_error', message: 'x' });
});
