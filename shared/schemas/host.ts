import Type from 'typebox';
import { diskIdPattern, hostIdPattern, regionPattern, sandboxIdPattern } from '../ids.ts';
import { SCHEMA_LIMITS } from './limits.ts';
import { joinProofPattern } from '../host-invitation.ts';
import { compile } from '../validate.ts';
import { timestamp } from './common.ts';
import { LIMITS } from '../limits.ts';

/** An operator's order to a host: nothing, no new work, or no work at all. */
export const hostOrders = ['up', 'cordoned', 'drained'] as const;
export type HostOrder = (typeof hostOrders)[number];

/** How virtual machines run on a host: at its processors' speed, or emulated. */
export const accelerators = ['kvm', 'tcg'] as const;
export type Accelerator = (typeof accelerators)[number];

/** Why a host's virtual machines run so. */
export const acceleratorReasons = [
  'set',
  'no_device',
  'probing',
  'booted',
  'timed_out',
  'failed',
] as const;
export interface AcceleratorChoice {
  readonly accelerator: Accelerator;
  readonly reason: (typeof acceleratorReasons)[number];
}

const count = (description: string, example: number) =>
  Type.Integer({ minimum: 0, description, examples: [example] });

/** Ids that a report names, so that an operator sees what is meant; absent from older agents. */
const named = (description: string, pattern: string, example: string) =>
  Type.Optional(
    Type.Array(Type.String({ pattern }), {
      maxItems: SCHEMA_LIMITS.hostReportIdsMax,
      description,
      examples: [[example]],
    }),
  );

/** A host's report of itself; the API shows it as it is. */
const HostFigures = Type.Object({
  version: Type.String({ description: 'The version of its agent.', examples: ['1.0.0'] }),
  vcpus: count('Virtual processors for sandboxes; 0 where it runs none.', 8),
  vcpusFree: count('Those that no sandbox holds.', 6),
  memoryMib: count('Memory for sandboxes, in MiB.', 16_384),
  memoryMibFree: count('What no sandbox holds of it, in MiB.', 12_288),
  storageFreeBytes: count('Free space where it has least.', 107_374_182_400),
  execSlots: count('How many commands on disks run at once.', 8),
  execsRunning: count('Commands on disks that run.', 1),
  execsWaiting: count('Commands on disks that wait for a turn.', 0),
  sandboxes: count('Its sandboxes, those at rest included.', 12),
  sandboxesActive: count('Those of them that run or change their state.', 3),
  disks: count('Disks that are attached there.', 4),
  disksHeld: count('Those of them that its sandboxes mount; paused containers keep theirs.', 1),
  accelerator: Type.Optional(
    Type.Enum([...accelerators], {
      description:
        'How new virtual machines run: `kvm`, or emulated (`tcg`). Absent where sandboxes are containers, or there are none.',
    }),
  ),
  acceleratorReason: Type.Optional(
    Type.Enum([...acceleratorReasons], {
      description:
        '`set` by SANDBOX_ACCELERATOR; `no_device`: there is no /dev/kvm; `probing`: a guest is being booted under KVM; `booted`: it did; `timed_out`: it did not in time; `failed`: QEMU could not run it.',
    }),
  ),
  sandboxesActiveIds: named(
    `The first ${SCHEMA_LIMITS.hostReportIdsMax} of \`sandboxesActive\`.`,
    sandboxIdPattern,
    '0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b',
  ),
  disksHeldIds: named(
    `The first ${SCHEMA_LIMITS.hostReportIdsMax} of \`disksHeld\`.`,
    diskIdPattern,
    'dsk-0123456789abcdef',
  ),
});

/** The directory's copy of a host's report. */
export const HostReport = Type.Interface([HostFigures], {
  /** Milliseconds since the epoch. */
  seenAt: Type.Integer({ minimum: 0 }),
  /** The order that the host follows. */
  order: Type.Enum([...hostOrders]),
  /** Whether paused sandboxes keep the disks that they mount; absent: not told, so they may. */
  pausedKeepDisks: Type.Optional(Type.Boolean()),
  /** The storage on which its sandboxes lie and move to other hosts; absent: they stay. */
  sandboxStorage: Type.Optional(Type.String({ pattern: sandboxIdPattern })),
});
export type HostReport = Type.Static<typeof HostReport>;
export const checkHostReport = compile(HostReport);

const HostId = Type.String({
  pattern: hostIdPattern,
  description: 'Id of the host.',
  examples: ['host-0a1b2c3d4e5f'],
});

export const HostPath = Type.Object({ id: HostId });

export const Host = Type.Interface(
  [HostFigures],
  {
    id: HostId,
    region: Type.String({
      pattern: regionPattern,
      description: 'Its region.',
      examples: ['local-dev'],
    }),
    state: Type.Enum(['up', 'cordoned', 'draining', 'drained', 'away', 'fenced'], {
      description:
        '`cordoned`: takes nothing new. `draining`: pauses its sandboxes and gives its disks up. `drained`: has no work left. `away`: silent for ' +
        `${LIMITS.hostTtlMs / 1000} seconds; its figures are the last that it told. ` +
        '`fenced`: away, and an operator has said that it is off.',
    }),
    order: Type.Enum([...hostOrders], {
      description: 'What the operator wants of it, also while it is away.',
    }),
    lastHeartbeat: timestamp('When it last told its figures.'),
  },
  { title: 'Host' },
);
export type Host = Type.Static<typeof Host>;

export const JoinRequest = Type.Object({
  proof: Type.String({
    pattern: joinProofPattern,
    description: 'Derived from the token of the invitation.',
    examples: ['Zx4v0tq1nM8c2s5e7h9k3b6d1f4a0yW_rTqLuPoJiGk'],
  }),
  nonce: Type.String({
    pattern: joinProofPattern,
    description:
      'Made by the host at random. With the same one it may ask again when the answer was lost.',
    examples: ['p0O9i8U7y6T5r4E3w2Q1aSdFgHjKlZxCvBnM1234567'],
  }),
  name: Type.String({
    pattern: '^[A-Za-z0-9.-]{1,64}$',
    description: 'How the host calls itself, for the audit.',
    examples: ['node-2'],
  }),
});
export type JoinRequest = Type.Static<typeof JoinRequest>;

export const JoinReply = Type.Object({
  sealed: Type.String({
    description: 'The settings of the cluster, which only the token opens.',
    examples: ['q83vEjRWeJq83vEjRWeJq83vEjRWeJ'],
  }),
});
