import Type from 'typebox';
import { accountIdPattern, diskIdPattern } from '../ids.ts';
import { compile } from '../validate.ts';
import { Timestamp } from './common.ts';
import { DiskName, diskStatuses, RootAttrs } from './disk.ts';
import { StoredBucket } from './disk-bucket.ts';
import { stsTypes } from './disk-user.ts';
import { parseJson } from '../json.ts';

const StoredUser = Type.Object({
  type: Type.Enum(['token', ...stsTypes]),
  principal: Type.Optional(Type.String()),
  nickname: Type.Optional(Type.String()),
  tokenSuffix: Type.Optional(Type.String()),
  identifier: Type.String(),
  createdAt: Timestamp,
  expiresAt: Type.Optional(Timestamp),
  sealedToken: Type.Optional(Type.String()),
});

/** `manifest.json` beside each disk image: the directory's record of the disk, for rebuilding. */
const DiskManifest = Type.Object({
  version: Type.Literal(1),
  disk: Type.Object({
    id: Type.String({ pattern: diskIdPattern }),
    accountId: Type.String({ pattern: accountIdPattern }),
    organization: Type.String(),
    region: Type.String(),
    name: DiskName,
    status: Type.Enum([...diskStatuses]),
    createdAt: Timestamp,
    rootAttrs: Type.Optional(RootAttrs),
    allowedIps: Type.Array(Type.String()),
    /** Manifests of earlier versions have none. */
    allowedOrigins: Type.Optional(Type.Array(Type.String())),
    users: Type.Array(StoredUser),
    mounts: Type.Optional(Type.Array(StoredBucket, { maxItems: 1 })),
    revision: Type.Integer({ minimum: 1 }),
  }),
});
export type DiskManifest = Type.Static<typeof DiskManifest>;

const check = compile(DiskManifest);

/** @throws Error when the text is not a manifest */
export const parseManifest = (text: string): DiskManifest => check(parseJson(text), 'manifest');
