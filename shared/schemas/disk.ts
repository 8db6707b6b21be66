import Type from 'typebox';
import { SCHEMA_LIMITS } from './limits.ts';
import { diskId, DiskId, PageQuery, timestamp } from './common.ts';
import { DiskMount, DiskMountInput } from './disk-bucket.ts';
import { ADDRESSES, ORIGIN } from './patterns.ts';
import { AuthorizedUser, DiskUserInput } from './disk-user.ts';

export const diskStatuses = ['creating', 'available', 'deleting', 'deleted', 'failed'] as const;
export type DiskStatus = (typeof diskStatuses)[number];

const uidMax = 4_294_967_294;

/**
 * Owner and mode of a disk's root directory, given at creation; `mode` is decimal (0o755 = 493).
 */
export const RootAttrs = Type.Object(
  {
    uid: Type.Optional(
      Type.Integer({ minimum: 0, maximum: uidMax, description: 'User id.', examples: [1000] }),
    ),
    gid: Type.Optional(
      Type.Integer({ minimum: 0, maximum: uidMax, description: 'Group id.', examples: [1000] }),
    ),
    mode: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: 0o777,
        description: 'Permissions as a decimal number: 493 is 0755.',
        examples: [0o755],
      }),
    ),
  },
  { title: 'RootAttrs', description: 'Owner and mode of the root directory.' },
);
export type RootAttrs = Type.Static<typeof RootAttrs>;

/** IP addresses or CIDR blocks. Empty: no restriction. */
const AllowedIp = Type.String({ minLength: 2, maxLength: 64, documented: { pattern: ADDRESSES } });
const AllowedIps = Type.Array(AllowedIp, {
  maxItems: SCHEMA_LIMITS.allowedIpsPerDiskMax,
  description:
    'IP addresses and CIDR blocks from which disk users may reach the disk; empty: from everywhere.',
  examples: [['192.0.2.10', '198.51.100.0/24']],
});

const AllowedOrigin = Type.String({
  minLength: 1,
  maxLength: 300,
  documented: { pattern: ORIGIN },
});
const AllowedOrigins = Type.Array(AllowedOrigin, {
  maxItems: SCHEMA_LIMITS.allowedOriginsPerDiskMax,
  description:
    'Origins whose pages may read objects and shared files of the disk in browsers, or `*` for all; empty: none.',
  examples: [['https://app.example.com']],
});

export const DiskName = Type.String({
  minLength: 1,
  maxLength: 100,
  pattern: '^[a-zA-Z0-9_-]+$',
  description: 'Unique in the account.',
  examples: ['training-data'],
});

export const CreateDisk = Type.Object(
  {
    name: DiskName,
    mounts: Type.Optional(
      Type.Array(DiskMountInput, {
        maxItems: 1,
        description: 'Object storage that is the contents of the disk; none: a disk of its own.',
        examples: [[]],
      }),
    ),
    allowedIps: Type.Optional(AllowedIps),
    allowedOrigins: Type.Optional(AllowedOrigins),
    rootAttrs: Type.Optional(RootAttrs),
    authMethods: Type.Optional(
      Type.Array(DiskUserInput, {
        maxItems: SCHEMA_LIMITS.usersPerDiskMax,
        deprecated: true,
        description: 'Users of the new disk, instead of the default token user.',
        examples: [[{ type: 'token', nickname: 'ci' }]],
      }),
    ),
  },
  { title: 'CreateDisk' },
);
export type CreateDisk = Type.Static<typeof CreateDisk>;

/** A disk as the API shows it (docs/api.md, Disks). */
export const Disk = Type.Object(
  {
    id: DiskId,
    name: Type.String({ description: 'Unique in the account.', examples: ['training-data'] }),
    organization: Type.String({
      description: 'The account that owns the disk.',
      examples: ['acct-0a1b2c3d4e5f6071'],
    }),
    status: Type.Enum([...diskStatuses], { description: 'Commands need an `available` disk.' }),
    provider: Type.String({
      description: 'The part of the region before its first hyphen.',
      examples: ['local'],
    }),
    region: Type.String({ description: 'Where the disk is kept.', examples: ['local-dev'] }),
    createdAt: timestamp('When the disk was created.'),
    fsHandlerStatus: Type.String({
      description: '`attached` while a host holds the disk, else `idle`.',
      examples: ['idle'],
    }),
    lastAccessed: Type.Optional(timestamp('When the disk was last used, in whatever way.')),
    dataSize: Type.Optional(
      Type.Integer({
        description: 'Bytes in use, as the file system says.',
        examples: [1_048_576],
      }),
    ),
    activeDataBytes: Type.Optional(
      Type.Integer({ description: 'Bytes in use; the same as `dataSize`.', examples: [1_048_576] }),
    ),
    mounts: Type.Array(DiskMount, {
      description: 'Object storage behind the disk; empty: it is a disk of its own.',
    }),
    metrics: Type.Optional(
      Type.Object(
        {
          requests: Type.Optional(
            Type.String({
              description: 'How many commands, object requests and downloads used the disk.',
              examples: ['42'],
            }),
          ),
          avgResponseTime: Type.Optional(
            Type.String({ description: 'How long they took on average.', examples: ['12 ms'] }),
          ),
        },
        { description: 'Figures of the use of the disk.' },
      ),
    ),
    connectedClients: Type.Array(
      Type.Object(
        {
          id: Type.String({ description: 'Names the client.', examples: ['client-1'] }),
          ipAddress: Type.String({
            description: 'Where it connects from.',
            examples: ['192.0.2.10'],
          }),
          connectedAt: timestamp('When it was first seen.'),
        },
        { title: 'DiskClient' },
      ),
      { description: 'Clients of disk users that used the disk within the last minutes.' },
    ),
    authorizedUsers: Type.Array(AuthorizedUser, { description: 'Who may use the disk directly.' }),
    allowedIps: Type.Array(Type.String(), {
      description: 'Addresses from which disk users may reach the disk; empty: from everywhere.',
      examples: [['192.0.2.10']],
    }),
    allowedOrigins: Type.Array(Type.String(), {
      description: 'Origins whose pages may read objects and shared files of the disk.',
      examples: [['https://app.example.com']],
    }),
    rootAttrs: Type.Optional(RootAttrs),
  },
  { title: 'Disk' },
);
export type Disk = Type.Static<typeof Disk>;

export const CreatedDisk = Type.Interface(
  [Disk],
  { diskId: diskId('Id of the disk, the same as `id`.') },
  { title: 'CreatedDisk' },
);
export type CreatedDisk = Type.Static<typeof CreatedDisk>;

export const DiskListQuery = Type.Interface([PageQuery], {
  name: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 100,
      description: 'Only the disk of this name.',
      examples: ['training-data'],
    }),
  ),
});

export const AllowedIpsBody = Type.Object({ allowedIps: AllowedIps }, { title: 'AllowedIps' });

export const AllowedOriginsBody = Type.Object(
  { allowedOrigins: AllowedOrigins },
  { title: 'AllowedOrigins' },
);

export const Delegations = Type.Object({
  delegations: Type.Array(
    Type.Object(
      {
        clientId: Type.String({
          description: 'The command that holds it or waits for it.',
          examples: ['exec-0a1b2c3d'],
        }),
        inodeId: Type.Integer({ description: 'Inode of the path.', examples: [12] }),
        path: Type.Optional(
          Type.String({ description: 'From the root of the disk.', examples: ['reports'] }),
        ),
        isPending: Type.Boolean({ description: 'Whether the command still waits for it.' }),
        isOrphaned: Type.Boolean({ description: 'Whether the command is gone.' }),
      },
      { title: 'Delegation', description: 'An exclusive write lease on a path of a disk.' },
    ),
    { description: 'Held ones and awaited ones.' },
  ),
});

export const RevokeDelegation = Type.Object(
  {
    clientId: Type.String({
      minLength: 1,
      maxLength: 255,
      description: 'The command that holds the lease.',
      examples: ['exec-0a1b2c3d'],
    }),
    inodeId: Type.Integer({
      minimum: 0,
      maximum: Number.MAX_SAFE_INTEGER,
      description: 'Inode of the path.',
      examples: [12],
    }),
  },
  { title: 'RevokeDelegation' },
);
