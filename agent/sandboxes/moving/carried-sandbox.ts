import { join } from 'node:path';
import Type from 'typebox';
import { errnoOf } from '../../../shared/errors.ts';
import {
  accountIdPattern,
  diskIdPattern,
  hostIdPattern,
  sandboxIdPattern,
} from '../../../shared/ids.ts';
import { parseJson } from '../../../shared/json.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { sandboxStates } from '../../../shared/sandbox-lifecycle.ts';
import { ShownNetworkPolicy } from '../../../shared/schemas/network-policy.ts';
import {
  SandboxConfig,
  sandboxExecStatuses,
  sandboxExitReasons,
} from '../../../shared/schemas/sandbox-record.ts';
import { type Ring, seal, unseal } from '../../../shared/secrets.ts';
import { compile } from '../../../shared/validate.ts';
import type { SandboxExecRow, SandboxRow } from '../../journal/sandbox-journal.ts';
import { readFileWithin } from '../../system/read-file-within.ts';
import { writeDurably } from '../../system/write-durably.ts';

/*
 * The journal's record of a sandbox, kept in the machine's directory so that it goes with it to
 * another host. Sealed with ENCRYPTION_KEY, bound to the machine: whoever can write to the storage
 * cannot make a sandbox of somebody else's, and reads no environment. Checked like anything else
 * that was written elsewhere.
 */

const FILES = { sandbox: 'sandbox.sealed', execs: 'execs.sealed' } as const;
/** The longest command of each of the listed ones, sealed. */
const EXECS_BYTES_MAX = 2 * LIMITS.sandboxExecsListedMax * LIMITS.commandBytesMax;
const SANDBOX_BYTES_MAX = 8 * 1024 * 1024;

const optional = Type.Optional;
const Uuid = Type.String({ pattern: sandboxIdPattern });
const Texts = Type.Unsafe<Record<string, string>>({
  type: 'object',
  additionalProperties: { type: 'string' },
});
const Image = Type.Object({
  reference: Type.String(),
  digest: optional(Type.String({ pattern: '^sha256:[0-9a-f]{64}$' })),
  platform: optional(Type.Enum(['amd64', 'arm64'])),
  config: optional(Type.Object({ env: Texts, workingDir: Type.String(), user: Type.String() })),
});
const Row = Type.Object({
  id: Uuid,
  accountId: Type.String({ pattern: accountIdPattern }),
  config: SandboxConfig,
  environment: Texts,
  image: optional(Image),
  network: ShownNetworkPolicy,
  networkSealed: optional(Type.String()),
  rootDiskId: Type.String({ pattern: diskIdPattern }),
  parentId: optional(Uuid),
  snapshotId: optional(Uuid),
  vmId: Uuid,
  bootId: Type.String(),
  state: Type.Enum([...sandboxStates]),
  checkpoint: optional(Type.String()),
  revision: Type.Integer({ minimum: 1 }),
  createdAt: Type.String(),
  lastActiveAt: Type.String(),
  runningAt: optional(Type.String()),
  finishedAt: optional(Type.String()),
  exitReason: optional(Type.Enum([...sandboxExitReasons])),
  exitMessage: optional(Type.String({ maxLength: LIMITS.sandboxExitMessageLengthMax })),
  isDeleting: Type.Boolean(),
});
const Sandbox = Type.Object({
  version: Type.Literal(1),
  /** The host that wrote it, and whose journal therefore has it. */
  hostId: Type.String({ pattern: hostIdPattern }),
  row: Row,
});
const Execs = Type.Object({
  version: Type.Literal(1),
  execs: Type.Array(
    Type.Object({
      id: Uuid,
      sandboxId: Uuid,
      command: Type.String({ maxLength: LIMITS.commandBytesMax }),
      timeoutAt: optional(Type.Integer()),
      status: Type.Enum([...sandboxExecStatuses]),
      ending: optional(Type.Enum(['cancelled', 'timed_out'])),
      startedAt: Type.String(),
      finishedAt: optional(Type.String()),
      exitCode: optional(Type.Integer()),
      exitReason: optional(Type.String()),
      executeTimeMs: optional(Type.Number({ minimum: 0 })),
      droppedBytes: Type.Integer({ minimum: 0 }),
    }),
    { maxItems: 2 * LIMITS.sandboxExecsListedMax },
  ),
});
const parseSandbox = compile(Sandbox);
const parseExecs = compile(Execs);

/** A row but for what it has of its host: user, slot and times of the host's clock. */
export type CarriedRow = Omit<
  SandboxRow,
  'uid' | 'slot' | 'runningSince' | 'expiresAt' | 'idleSince'
>;

export interface CarriedSandbox {
  readonly hostId: string;
  readonly row: CarriedRow;
}

const contextOf = (kind: keyof typeof FILES, vmId: string): string => `moving ${kind} of ${vmId}`;

/** Writes it durably beside the machine's disk. */
export async function writeSandbox(
  directory: string,
  keys: Ring<Buffer>,
  { hostId, row }: { readonly hostId: string; readonly row: SandboxRow },
): Promise<void> {
  const { uid: _, slot: __, runningSince: ___, expiresAt: ____, idleSince: _____, ...kept } = row;
  const text = JSON.stringify({ version: 1, hostId, row: kept });
  await writeDurably(directory, FILES.sandbox, seal(keys, text, contextOf('sandbox', row.vmId)));
}

/** Like {@link writeSandbox}, for its commands in the order of their execution. */
export async function writeExecs(
  directory: string,
  keys: Ring<Buffer>,
  vmId: string,
  execs: readonly SandboxExecRow[],
): Promise<void> {
  const text = JSON.stringify({ version: 1, execs });
  await writeDurably(directory, FILES.execs, seal(keys, text, contextOf('execs', vmId)));
}

/**
 * @returns undefined when no host has written any: its creation was not over
 * @throws Error for anything but what a host of this cluster has written of this machine
 */
export async function readSandbox(
  directory: string,
  keys: Ring<Buffer>,
  vmId: string,
): Promise<CarriedSandbox | undefined> {
  const sealed = await readBounded(join(directory, FILES.sandbox), SANDBOX_BYTES_MAX);
  if (sealed === undefined) return undefined;
  const text = unseal(keys, sealed, contextOf('sandbox', vmId));
  const { hostId, row } = parseSandbox(parseJson(text), FILES.sandbox);
  if (row.vmId !== vmId) throw new Error('it is of another machine');
  // The journal's type: each field is there.
  return { hostId, row: { ...ABSENT, ...row, image: row.image } };
}

const ABSENT = {
  networkSealed: undefined,
  parentId: undefined,
  snapshotId: undefined,
  checkpoint: undefined,
  runningAt: undefined,
  finishedAt: undefined,
  exitReason: undefined,
  exitMessage: undefined,
} as const;

/** The commands of a sandbox. @throws Error as {@link readSandbox} */
export async function readExecs(
  directory: string,
  keys: Ring<Buffer>,
  { id, vmId }: Pick<CarriedRow, 'id' | 'vmId'>,
): Promise<SandboxExecRow[]> {
  const sealed = await readBounded(join(directory, FILES.execs), EXECS_BYTES_MAX);
  if (sealed === undefined) return [];
  const text = unseal(keys, sealed, contextOf('execs', vmId));
  const { execs } = parseExecs(parseJson(text), FILES.execs);
  if (execs.some(({ sandboxId }) => sandboxId !== id))
    throw new Error('it has commands of another sandbox');
  return execs as SandboxExecRow[];
}

async function readBounded(path: string, bytesMax: number): Promise<string | undefined> {
  try {
    return (await readFileWithin(path, bytesMax)).toString('utf8');
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}
