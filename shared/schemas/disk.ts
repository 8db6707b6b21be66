import Type from 'typebox';
import { LIMITS } from '../limits.ts';
import { DiskId, PageQuery, Timestamp } from './common.ts';
import { AuthorizedUser, DiskUserInput } from './disk-user.ts';

export const diskStatuses = ['creating', 'available', 'deleting', 'deleted', 'failed'] as const;
export type DiskStatus = (typeof diskStatuses)[number];

const uidMax = 4_294_967_294;

/** Owner and mode of a disk's root directory, given at creation; `mode` is decimal (0o755 = 493). */
export const RootAttrs = Type.Object({
  uid: Type.Optional(Type.Integer({ minimum: 0, maximum: uidMax })),
  gid: Type.Optional(Type.Integer({ minimum: 0, maximum: uidMax })),
  mode: Type.Optional(Type.Integer({ minimum: 0, maximum: 0o777 })),
});
export type RootAttrs = Type.Static<typeof RootAttrs>;

/** IP addresses or CIDR blocks; their form is checked by the service. Empty: no restriction. */
const AllowedIps = Type.Array(Type.String({ minLength: 2, maxLength: 64 }), {
  maxItems: LIMITS.allowedIpsPerDiskMax,
});

export const DiskName = Type.String({
  minLength: 1,
  maxLength: 100,
  pattern: '^[a-zA-Z0-9_-]+$',
});

export const CreateDisk = Type.Object({
  name: DiskName,
  mounts: Type.Optional(
    Type.Array(Type.Object({ type: Type.String() }), {
      maxItems: 1,
      description: 'Object-storage mounts; not built yet: anything but an empty list answers 400.',
    }),
  ),
  allowedIps: Type.Optional(AllowedIps),
  rootAttrs: Type.Optional(RootAttrs),
  authMethods: Type.Optional(
    Type.Array(DiskUserInput, {
      maxItems: LIMITS.usersPerDiskMax,
      deprecated: true,
      description: 'Users of the new disk, instead of the default token user.',
    }),
  ),
});
export type CreateDisk = Type.Static<typeof CreateDisk>;

/** A disk as the API shows it (docs/api.md, Disks). */
export const Disk = Type.Object({
  id: DiskId,
  name: Type.String(),
  organization: Type.String(),
  status: Type.Enum([...diskStatuses]),
  provider: Type.String(),
  region: Type.String(),
  createdAt: Timestamp,
  fsHandlerStatus: Type.String({
    description: '`attached` while a host holds the disk, else `idle`.',
  }),
  lastAccessed: Type.Optional(Timestamp),
  dataSize: Type.Optional(Type.Integer({ description: 'Bytes in use, as the file system says.' })),
  activeDataBytes: Type.Optional(Type.Integer()),
  mounts: Type.Array(Type.Object({})),
  metrics: Type.Optional(
    Type.Object({
      requests: Type.Optional(Type.String()),
      avgResponseTime: Type.Optional(Type.String()),
    }),
  ),
  connectedClients: Type.Array(
    Type.Object({ id: Type.String(), ipAddress: Type.String(), connectedAt: Timestamp }),
  ),
  authorizedUsers: Type.Array(AuthorizedUser),
  allowedIps: Type.Array(Type.String()),
  rootAttrs: Type.Optional(RootAttrs),
});
export type Disk = Type.Static<typeof Disk>;

export const CreatedDisk = Type.Interface([Disk], { diskId: DiskId });
export type CreatedDisk = Type.Static<typeof CreatedDisk>;

export const DiskListQuery = Type.Interface([PageQuery], {
  name: Type.Optional(Type.String({ minLength: 1, maxLength: 100 })),
});

export const AllowedIpsBody = Type.Object({ allowedIps: AllowedIps });

export const Delegations = Type.Object({
  delegations: Type.Array(
    Type.Object({
      clientId: Type.String(),
      inodeId: Type.Integer(),
      path: Type.Optional(Type.String()),
      isPending: Type.Boolean(),
      isOrphaned: Type.Boolean(),
    }),
  ),
});

export const RevokeDelegation = Type.Object({
  clientId: Type.String({ minLength: 1, maxLength: 255 }),
  inodeId: Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER }),
});
