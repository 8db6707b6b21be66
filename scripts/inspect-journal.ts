import { readFile } from 'node:fs/promises';
import { parseArgs } from 'node:util';
import { paths } from '../agent/system/paths.ts';
import { type ExecIntent, Journal } from '../agent/system/journal/journal.ts';
import type { SandboxExecRow, SandboxRow } from '../agent/system/journal/sandbox-journal.ts';
import type { SnapshotRow } from '../agent/system/journal/snapshot-journal.ts';
import { planSlot } from '../agent/network/slots/slot.ts';
import { toError } from '../shared/errors.ts';
import { isTransitional } from '../shared/sandbox-lifecycle.ts';

const USAGE = `usage: scripts/inspect-journal [<agent data directory>] [--json]

Prints the sandboxes of a host, what each has of the host, their commands, its snapshots, and what was
begun and is not finished. Changes nothing; the agent may run. The directory is AGENT_DATA_DIR unless it is given.
`;

const TEXT_LENGTH_MAX = 100;
/** More execs than a sandbox keeps. */
const EXECS_MAX = 10_000;
const COMMAND_LENGTH_MAX = 4096;

/** A row without what may be secret: of the environment the names alone. */
type Shown<T> = Omit<T, 'environment' | 'networkSealed'> & {
  readonly environmentNames: readonly string[];
};

type SandboxReport = Shown<SandboxRow> & {
  /** The network namespace of its slot. */
  readonly namespace: string | undefined;
  readonly execs: readonly SandboxExecRow[];
};

interface Report {
  readonly hostId: string;
  /** Commands on disks that run or are not reclaimed yet. */
  readonly diskExecs: readonly ExecIntent[];
  readonly sandboxes: readonly SandboxReport[];
  readonly snapshots: readonly Shown<SnapshotRow>[];
  readonly unfinished: readonly string[];
}

function withoutSecrets<T extends SandboxRow | SnapshotRow>(row: T): Shown<T> {
  const { environment, networkSealed: _sealed, ...rest } = row;
  return { ...rest, environmentNames: Object.keys(environment) };
}

function reportSandbox(hostId: string, row: SandboxRow, execs: SandboxExecRow[]): SandboxReport {
  const namespace = row.slot === undefined ? undefined : planSlot(hostId, row.slot).namespace;
  return { ...withoutSecrets(row), namespace, execs };
}

/** Work that the next agent would have to recover if this one crashed now. */
function unfinishedOf({ id, state, isDeleting, execs }: SandboxReport): string[] {
  const begun = execs.filter(({ status }) => status === 'running');
  return [
    ...(isDeleting ? [`sandbox ${id} is being deleted`] : []),
    ...(!isDeleting && isTransitional(state) ? [`sandbox ${id} is in state ${state}`] : []),
    ...begun.map(({ id: execId, ending }) =>
      ending === undefined
        ? `command ${execId} of sandbox ${id} runs`
        : `command ${execId} of sandbox ${id} is being ended: ${ending}`,
    ),
  ];
}

const unfinishedSnapshot = ({ id, state }: Shown<SnapshotRow>): string[] =>
  state === 'creating' || state === 'deleting' ? [`snapshot ${id} is in state ${state}`] : [];

async function inspect(dataDir: string): Promise<Report> {
  const journal = await Journal.openToRead(paths.journal(dataDir));
  try {
    const hostId = (await readFile(paths.hostId(dataDir), 'utf8')).trim();
    const diskExecs = await journal.execs();
    const sandboxes: SandboxReport[] = [];
    for (const row of await journal.sandboxes.list()) {
      const execs = await journal.sandboxes.listExecs(row.id, EXECS_MAX, COMMAND_LENGTH_MAX);
      sandboxes.push(reportSandbox(hostId, row, execs));
    }
    const snapshots = (await journal.snapshots.list()).map((row) => withoutSecrets(row));
    const unfinished = [
      ...diskExecs.map(({ id }) => `command ${id} on disks runs or is not reclaimed yet`),
      ...sandboxes.flatMap(unfinishedOf),
      ...snapshots.flatMap(unfinishedSnapshot),
    ];
    return { hostId, diskExecs, sandboxes, snapshots, unfinished };
  } finally {
    await journal.close();
  }
}

/**
 * Makes a caller's text harmless for a terminal: control characters are escaped, long texts cut.
 */
function plain(text: string): string {
  const cut = text.length > TEXT_LENGTH_MAX ? `${text.slice(0, TEXT_LENGTH_MAX)}…` : text;
  return cut.replaceAll(/[\p{C}\p{Zl}\p{Zp}]/gu, '?');
}

const line = (indent: number, ...parts: (string | undefined)[]): string =>
  `${' '.repeat(indent)}${parts.filter((part) => part !== undefined).join('  ')}`;

function describeExec(exec: SandboxExecRow): string {
  const end = exec.exitCode === undefined ? undefined : `exit ${exec.exitCode}`;
  const ending = exec.ending === undefined ? undefined : `will be ${exec.ending}`;
  return line(4, exec.id, exec.startedAt, exec.status, end, ending, plain(exec.command));
}

function describeSandbox(sandbox: SandboxReport): string[] {
  const { id, vmId, accountId, config, state, revision, uid, slot, namespace, bootId } = sandbox;
  const { vcpuCount, memSizeMib } = config;
  const isDeleting = sandbox.isDeleting ? 'being deleted' : undefined;
  const network = slot === undefined ? 'no slot' : `slot ${slot}  namespace ${namespace}`;
  const exit = sandbox.exitReason;
  const { hook } = sandbox;
  const { createdAt, runningAt = '-', finishedAt = '-' } = sandbox;
  const shape = `${vcpuCount} vcpu  ${memSizeMib} MiB`;
  return [
    line(0, id, plain(config.name), accountId, state, isDeleting, `revision ${revision}`),
    line(2, `machine: ${vmId}  ${shape}  uid ${uid}  boot ${bootId}  ${network}`),
    line(2, `created ${createdAt}  running ${runningAt}  finished ${finishedAt}`),
    ...(exit === undefined ? [] : [line(2, `exit: ${exit}`, plain(sandbox.exitMessage ?? ''))]),
    ...(hook === undefined ? [] : [line(2, `hook: ${hook.status}`, plain(hook.message ?? ''))]),
    ...(sandbox.execs.length === 0 ? [] : [line(2, 'commands:')]),
    ...sandbox.execs.map(describeExec),
  ];
}

function describeSnapshot(snapshot: Shown<SnapshotRow>): string[] {
  const { id, name, accountId, state, sandboxId, sizeBytes, createdAt, failureReason } = snapshot;
  const memory = snapshot.hasMemory ? 'with memory' : 'disk only';
  return [
    line(0, id, plain(name), accountId, `snapshot ${state}`),
    line(2, `of sandbox ${sandboxId}`, memory, `${sizeBytes} bytes`, `created ${createdAt}`),
    ...(failureReason === undefined ? [] : [line(2, `failure: ${plain(failureReason)}`)]),
  ];
}

const describe = ({ hostId, diskExecs, sandboxes, snapshots, unfinished }: Report): string =>
  [
    `${hostId}: sandboxes ${sandboxes.length}, snapshots ${snapshots.length}, commands on disks ${diskExecs.length}`,
    '',
    ...sandboxes.flatMap((sandbox) => [...describeSandbox(sandbox), '']),
    ...snapshots.flatMap((snapshot) => [...describeSnapshot(snapshot), '']),
    ...diskExecs.map(({ id, accountId, diskIds, begunAt }) =>
      line(0, id, accountId, begunAt, diskIds.join(' ')),
    ),
    unfinished.length === 0 ? 'Nothing is unfinished.' : 'Unfinished:',
    ...unfinished.map((each) => line(2, each)),
  ].join('\n');

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      json: { type: 'boolean', default: false },
      help: { type: 'boolean', short: 'h', default: false },
    },
  });
  if (values.help) {
    process.stdout.write(USAGE);
    return;
  }
  const dataDir = positionals[0] ?? process.env['AGENT_DATA_DIR'];
  if (dataDir === undefined || positionals.length > 1) throw new Error(USAGE);
  const report = await inspect(dataDir);
  process.stdout.write(`${values.json ? JSON.stringify(report) : describe(report)}\n`);
}

main().catch((error: unknown) => {
  process.stderr.write(`inspect-journal: ${toError(error).message}\n`);
  process.exitCode = 1;
});
