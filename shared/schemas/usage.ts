import Type from 'typebox';

const MONTH = { pattern: '^[0-9]{4}-(0[1-9]|1[0-2])$', examples: ['2026-11'] } as const;

export const UsageQuery = Type.Object({
  month: Type.Optional(
    Type.String({ ...MONTH, description: 'A month in UTC; the present one when it is left out.' }),
  ),
});

const limit = (description: string, example: number) =>
  Type.Optional(Type.Integer({ minimum: 0, description, examples: [example] }));

const AccountLimits = Type.Object(
  {
    vcpus: limit('Virtual processors of all sandboxes together.', 8),
    memoryMib: limit('Memory of all sandboxes together, in MiB.', 16_384),
    sandboxes: limit('Sandboxes in every state.', 20),
    disks: limit('Disks.', 50),
    diskBytes: limit('Bytes in use on all disks together.', 107_374_182_400),
    requestsPerSecond: limit('Calls per second with keys of the account.', 50),
  },
  { description: 'What the operator lets the account have now; no limit where one is absent.' },
);

export const Usage = Type.Object(
  {
    month: Type.String({ ...MONTH, description: 'The month in UTC.' }),
    region: Type.String({ description: 'The region that was measured.', examples: ['local-dev'] }),
    vcpuSeconds: Type.Number({
      description: 'Virtual processors of sandboxes, times the seconds that they held them.',
      examples: [7200.5],
    }),
    memoryGibSeconds: Type.Number({
      description: 'GiB of memory of sandboxes, times the seconds that they held it.',
      examples: [14401],
    }),
    storageByteHours: Type.Number({
      description: 'Bytes in use on disks, times hours.',
      examples: [1073741824],
    }),
    requests: Type.Integer({
      description: 'Calls with a key of the account, refused ones too.',
      examples: [1200],
    }),
    execs: Type.Integer({
      description: 'Commands on disks and in sandboxes that calls have begun.',
      examples: [340],
    }),
    limits: AccountLimits,
  },
  { title: 'Usage' },
);
