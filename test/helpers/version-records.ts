/* Records of a version's parts, as test/fixtures/versions has them (docs/decisions/0083). */
import { DatabaseSync } from 'node:sqlite';
import { Journal } from '../../agent/system/journal/journal.ts';
import { errorCodes } from '../../shared/errors.ts';
import { newDiskId, newJobId, newRequestId, newSandboxId } from '../../shared/ids.ts';
import { JobSeal } from '../../shared/jobs/job-seal.ts';
import { jobSchemas } from '../../shared/jobs/jobs.ts';
import { AgentFrame, ControlFrame } from '../../shared/links/stream-protocol.ts';
import { newSandbox } from './sandbox-records.ts';
import { type JsonSchema, SchemaDocument, SchemaValues } from './schema-values.ts';

const SEAL_SECRET = 'the secret of the recorded versions';
const SAMPLE_BYTES_MAX = 3_000;

/** Messages of one kind. */
interface MessageRecord {
  readonly name: string;
  readonly schema: JsonSchema;
  readonly samples: readonly unknown[];
}

export interface VersionRecord {
  readonly agentFrames: readonly MessageRecord[];
  readonly controlFrames: readonly MessageRecord[];
  readonly jobs: readonly MessageRecord[];
  readonly sealed: { readonly secret: string; readonly queue: string; readonly sealed: string };
}

export interface JournalContents {
  readonly execs: unknown;
  readonly sandboxes: unknown;
  readonly sandboxExecs: unknown;
  readonly snapshots: unknown;
  readonly diskHolds: unknown;
}

const sizeOf = (value: unknown): number => JSON.stringify(value).length;

/** The smallest and the largest that are worth keeping. */
function samplesOf(schema: JsonSchema): unknown[] {
  const { valid } = new SchemaValues(new SchemaDocument(schema), {
    code: errorCodes,
  }).samples(schema);
  const values = valid
    .map(({ value }) => value)
    .filter((value) => sizeOf(value) < SAMPLE_BYTES_MAX);
  const sorted = values.sort((a, b) => sizeOf(a) - sizeOf(b));
  return [sorted.at(0), sorted.at(-1)];
}

const plain = (schema: unknown): JsonSchema => JSON.parse(JSON.stringify(schema)) as JsonSchema;

const record = (schemas: readonly JsonSchema[], tag: string): MessageRecord[] =>
  schemas.map((schema) => ({
    name: String(schema.properties?.[tag]?.const),
    schema,
    samples: samplesOf(schema),
  }));

/** The schemas of the messages of today. */
export const messagesOfToday = () => ({
  agentFrames: plain(AgentFrame).oneOf ?? [],
  controlFrames: plain(ControlFrame).oneOf ?? [],
  jobs: jobSchemas.map(plain),
});

export function recordVersion(): VersionRecord {
  const { agentFrames, controlFrames, jobs } = messagesOfToday();
  const queue = 'host-recorded';
  const kept = record(jobs, 'kind');
  const [job] = kept.find(({ name }) => name === 'exec.run')?.samples ?? [];
  type Job = Parameters<JobSeal['seal']>[1];
  return {
    agentFrames: record(agentFrames, 'type'),
    controlFrames: record(controlFrames, 'type'),
    jobs: kept,
    sealed: {
      ...{ secret: SEAL_SECRET, queue },
      ...new JobSeal([SEAL_SECRET]).seal(queue, job as Job),
    },
  };
}

/** Writes a row of each kind into a journal. */
export async function fillJournal(path: string): Promise<void> {
  const journal = await Journal.open(path);
  const sandbox = newSandbox({ checkpoint: 'a-checkpoint', exitReason: 'stopped' });
  const ids = { accountId: sandbox.accountId, sandboxId: sandbox.id };
  await journal.beginExec({
    ...{ id: newJobId(), accountId: sandbox.accountId, diskIds: [newDiskId(), newDiskId()] },
    ...{ requestId: newRequestId(), begunAt: sandbox.createdAt },
  });
  await journal.sandboxes.insert(sandbox);
  const image = { reference: 'docker.io/library/debian:12', digest: `sha256:${'0'.repeat(64)}` };
  await journal.sandboxes.insert(
    newSandbox({ image, uid: 600_100_002, slot: 4, isDeleting: true, parentId: sandbox.id }),
  );
  await journal.sandboxes.beginExec({
    ...{ id: newJobId(), sandboxId: sandbox.id, command: "echo 'recorded'", status: 'running' },
    ...{ startedAt: sandbox.createdAt, droppedBytes: 7, timeoutAt: undefined, ending: undefined },
  });
  await journal.diskHolds.add({ ...ids, diskId: newDiskId() });
  await journal.snapshots.insert({
    ...{ id: newSandboxId(), accountId: ids.accountId, name: 'recorded', sandboxId: ids.sandboxId },
    ...{ config: sandbox.config, environment: sandbox.environment, network: sandbox.network },
    ...{ image: undefined, networkSealed: undefined, rootDiskId: newDiskId(), uid: 600_100_003 },
    ...{ state: 'ready', hasMemory: true, sizeBytes: 4096, failureReason: undefined, revision: 2 },
    createdAt: sandbox.createdAt,
  });
  await journal.close();
}

/** Parses a journal with today's agent. */
export async function readJournal(path: string): Promise<JournalContents> {
  const journal = await Journal.open(path);
  try {
    const sandboxes = await journal.sandboxes.list();
    const commands = sandboxes.map(({ id }) => journal.sandboxes.listExecs(id, 100, 100));
    const contents: JournalContents = {
      execs: await journal.execs(),
      sandboxes,
      sandboxExecs: (await Promise.all(commands)).flat(),
      snapshots: await journal.snapshots.list(),
      diskHolds: await journal.diskHolds.list(),
    };
    return JSON.parse(JSON.stringify(contents)) as JournalContents;
  } finally {
    await journal.close();
  }
}

const literal = (value: unknown): string =>
  typeof value === 'string' ? `'${value.replaceAll("'", "''")}'` : String(value);

/** A journal as statements that make it again. */
export function dumpJournal(path: string): string {
  const database = new DatabaseSync(path);
  try {
    const made = database
      .prepare("SELECT name, type, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")
      .all();
    const inserts = made
      .filter(({ type }) => type === 'table')
      .flatMap(({ name }) =>
        database
          .prepare(`SELECT * FROM ${String(name)}`)
          .all()
          .map((row) => {
            const columns = Object.keys(row).join(', ');
            const values = Object.values(row).map(literal).join(', ');
            return `INSERT INTO ${String(name)} (${columns}) VALUES (${values});`;
          }),
      );
    const version = database.prepare('PRAGMA user_version').get()?.['user_version'];
    const statements = [...made.map(({ sql }) => `${String(sql)};`), ...inserts];
    return `${statements.join('\n')}\nPRAGMA user_version = ${String(version)};\n`;
  } finally {
    database.close();
  }
}

export function loadJournal(path: string, dump: string): void {
  const database = new DatabaseSync(path);
  database.exec(dump);
  database.close();
}
