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
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import { sandboxStates } from '../../../shared/sandbox-lifecycle.ts';
import { ShownNetworkPolicy } from '../../../shared/schemas/network-policy.ts';
import {
  HookResult,
  SandboxConfig,
  sandboxExitReasons,
} from '../../../shared/schemas/sandbox-record.ts';
import { type Ring, seal, unseal } from '../../../shared/secrets.ts';
import { compile } from '../../../shared/validate.ts';
import type { NameAddresses, SandboxRow } from '../../system/journal/sandbox-journal.ts';
import { readFileWithin } from '../../system/read-file-within.ts';
import { writeDurably } from '../../system/write-durably.ts';
import { onSharedThread } from '../execs/shared-threads.ts';

/*
 * The journal's record of a sandbox, kept in the machine's directory so that it goes with it to
 * another host. Sealed with ENCRYPTION_KEY, bound to the machine: whoever can write to the storage
 * cannot make a sandbox of somebody else's, and reads no environment. Checked like anything else
 * that was written elsewhere.
 */

const FILE = 'sandbox.sealed';
const BYTES_MAX = 8 * 1024 * 1024;

const optional = Type.Optional;
const Uuid = Type.String({ pattern: sandboxIdPattern });
const Texts = Type.Unsafe<Record<string, string>>({
  type: 'object',
  additionalProperties: { type: 'string' },
});
const Addresses = Type.Unsafe<NameAddresses>({
  type: 'object',
  additionalProperties: { type: 'object', additionalProperties: { type: 'number' } },
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
  nameAddresses: optional(Addresses),
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
  exitMessage: optional(Type.String({ maxLength: SCHEMA_LIMITS.sandboxExitMessageLengthMax })),
  hook: optional(HookResult),
  isDeleting: Type.Boolean(),
});
const Sandbox = Type.Object({
  version: Type.Literal(1),
  /** The host that wrote it, and whose journal therefore has it. */
  hostId: Type.String({ pattern: hostIdPattern }),
  row: Row,
});
const parseSandbox = compile(Sandbox);

/** A row but for what it has of its host: user, slot and times of the host's clock. */
export type HandoverRow = Omit<
  SandboxRow,
  'uid' | 'slot' | 'runningSince' | 'expiresAt' | 'idleSince'
>;

export interface HandoverRecord {
  readonly hostId: string;
  readonly row: HandoverRow;
}

const contextOf = (vmId: string): string => `moving sandbox of ${vmId}`;

/** Writes it durably beside the machine's disk. */
export async function writeSandbox(
  directory: string,
  keys: Ring<Buffer>,
  { hostId, row }: { readonly hostId: string; readonly row: SandboxRow },
): Promise<void> {
  const { uid: _, slot: __, runningSince: ___, expiresAt: ____, idleSince: _____, ...kept } = row;
  // Hosts of before know no `draining`.
  const known = { ...kept, state: row.state === 'draining' ? 'pausing' : row.state };
  const text = JSON.stringify({ version: 1, hostId, row: known });
  const sealed = seal(keys, text, contextOf(row.vmId));
  await onSharedThread(() => writeDurably(directory, FILE, sealed));
}

/**
 * @returns undefined when no host has written any: its creation was not over
 * @throws Error for anything but what a host of this cluster has written of this machine
 */
export async function readSandbox(
  directory: string,
  keys: Ring<Buffer>,
  vmId: string,
): Promise<HandoverRecord | undefined> {
  const sealed = await readIfThere(join(directory, FILE));
  if (sealed === undefined) return undefined;
  const text = unseal(keys, sealed, contextOf(vmId));
  const { hostId, row } = parseSandbox(parseJson(text), FILE);
  if (row.vmId !== vmId) throw new Error('it is of another machine');
  // The journal's type: each field is there.
  return { hostId, row: { ...ABSENT, ...row, image: row.image } };
}

const ABSENT = {
  networkSealed: undefined,
  nameAddresses: undefined,
  parentId: undefined,
  snapshotId: undefined,
  checkpoint: undefined,
  runningAt: undefined,
  finishedAt: undefined,
  exitReason: undefined,
  exitMessage: undefined,
  hook: undefined,
} as const;

async function readIfThere(path: string): Promise<string | undefined> {
  try {
    return (await onSharedThread(() => readFileWithin(path, BYTES_MAX))).toString('utf8');
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}
