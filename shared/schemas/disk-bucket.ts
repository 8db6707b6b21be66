import Type from 'typebox';
import { taggedUnion } from '../validate.ts';
import { diskId, timestamp } from './common.ts';

const mountTypes = ['s3', 's3-compatible', 'r2', 'gcs', 'azure-blob'] as const;
export type MountType = (typeof mountTypes)[number];

const mountIdPattern = '^mnt-[0-9a-f]{16}$';

const BUCKET_NAME = { minLength: 3, maxLength: 255, pattern: '^[A-Za-z0-9][A-Za-z0-9._-]+$' };
const ENDPOINT = { minLength: 8, maxLength: 2048 };

const bucketName = Type.String({
  ...BUCKET_NAME,
  description: 'The bucket.',
  examples: ['training-data'],
});
const containerName = Type.String({
  ...BUCKET_NAME,
  description: 'The container of blobs.',
  examples: ['training-data'],
});
const bucketEndpoint = Type.String({
  ...ENDPOINT,
  description: 'Where the storage is reached. Private addresses are refused unless set free.',
  examples: ['https://objects.example.com'],
});
const bucketPrefix = Type.Optional(
  Type.String({
    maxLength: 512,
    description: 'Only the keys below this folder are the contents of the disk.',
    examples: ['runs/2026'],
  }),
);
const writeBack = Type.Optional(
  Type.Enum(['sync', 'lazy'], {
    description:
      'When a command answers: once what it wrote is in the bucket (`sync`, the default), or before that (`lazy`).',
    examples: ['sync'],
  }),
);

const secret = (description: string, example: string) =>
  Type.String({ minLength: 1, maxLength: 4096, writeOnly: true, description, examples: [example] });
const accessKeyId = secret('Names the key pair.', 'AKIAIOSFODNN7EXAMPLE');
const secretAccessKey = secret('The secret of the key pair.', 'wJalrXUtnFEMI/EXAMPLEKEY');
const sessionToken = Type.Optional(secret('Of temporary credentials.', 'FwoGZXIvYXdzEXAMPLE'));
const tenantId = Type.String({
  pattern: '^[A-Za-z0-9][A-Za-z0-9.-]{0,254}$',
  writeOnly: true,
  description: 'The tenant of the application: its id, or a domain of it.',
  examples: ['contoso.onmicrosoft.com'],
});
const clientId = secret('The application.', '00001111-aaaa-2222-bbbb-3333cccc4444');
const clientSecret = secret('The secret of the application.', 'a-client-secret');

/** Refused rather than ignored: no disk keeps commands from writing to its bucket. */
const restrictions = {
  accessMode: Type.Optional(Type.Literal('rw', { description: 'Every mount may be written to.' })),
  readOnly: Type.Optional(Type.Literal(false, { description: 'Every mount may be written to.' })),
};
const common = { bucketPrefix, writeBack, ...restrictions };
const keyPair = { accessKeyId, secretAccessKey };

const S3Mount = Type.Object({
  type: Type.Literal('s3', { description: 'Amazon S3.' }),
  bucketName,
  bucketEndpoint: Type.Optional(bucketEndpoint),
  accessKeyId: Type.Optional(accessKeyId),
  secretAccessKey: Type.Optional(secretAccessKey),
  sessionToken,
  ...common,
});
const GcsMount = Type.Object({
  type: Type.Literal('gcs', { description: 'Google Cloud Storage, with an HMAC key.' }),
  bucketName,
  bucketEndpoint: Type.Optional(bucketEndpoint),
  ...keyPair,
  ...common,
});
const EndpointMount = Type.Object({
  type: Type.Enum(['s3-compatible', 'r2'], { description: 'Any server that speaks S3, or R2.' }),
  bucketName,
  bucketEndpoint,
  ...keyPair,
  ...common,
});
const AzureMount = Type.Object({
  type: Type.Literal('azure-blob', { description: 'Azure Blob Storage.' }),
  containerName,
  tenantId,
  clientId,
  clientSecret,
  endpoint: Type.Optional(
    Type.String({
      ...ENDPOINT,
      description:
        'Where the storage account is reached, with https://. Private addresses are refused unless set free.',
      examples: ['https://trainingdata.blob.core.windows.net'],
    }),
  ),
  storageAccountName: Type.Optional(
    Type.String({
      minLength: 3,
      maxLength: 24,
      pattern: '^[a-z0-9]+$',
      description: 'The storage account, which the endpoint follows from unless one is given.',
      examples: ['trainingdata'],
    }),
  ),
  ...common,
});

/** Object storage behind a new disk (docs/bucket-disks.md). */
export const DiskMountInput = taggedUnion('type', [S3Mount, GcsMount, EndpointMount, AzureMount]);
export type DiskMountInput = Type.Static<typeof DiskMountInput>;

/** Those of the S3 family have a key pair, those of Azure an application. */
export const BucketCredentials = Type.Object(
  {
    accessKeyId: Type.Optional(accessKeyId),
    secretAccessKey: Type.Optional(secretAccessKey),
    sessionToken,
    tenantId: Type.Optional(tenantId),
    clientId: Type.Optional(clientId),
    clientSecret: Type.Optional(clientSecret),
  },
  { title: 'MountCredentials' },
);
export type BucketCredentials = Type.Static<typeof BucketCredentials>;

export const MountPath = Type.Object({
  id: diskId('Id of the disk.'),
  mountId: Type.String({
    pattern: mountIdPattern,
    description: 'Id of the mount.',
    examples: ['mnt-0a1b2c3d4e5f6071'],
  }),
});

const connectionStatuses = ['connected', 'disconnected', 'error'] as const;

/** Something in the bucket that the disk cannot show, or that both sides changed. */
const BucketProblem = Type.Object({
  key: Type.String({ description: 'The key in the bucket.', examples: ['a//b'] }),
  reason: Type.String({
    description: 'Why it is not a file of the disk, or what was done about it.',
    examples: ['an empty part cannot be a file name'],
  }),
});

/** Object storage behind a disk as the API shows it. */
export const DiskMount = Type.Object(
  {
    id: Type.String({ description: 'Id of the mount.', examples: ['mnt-0a1b2c3d4e5f6071'] }),
    type: Type.Enum([...mountTypes], { description: 'Kind of object storage.' }),
    path: Type.String({
      description: 'Where it is on the disk: always its root.',
      examples: ['/'],
    }),
    name: Type.String({ description: 'The bucket.', examples: ['training-data'] }),
    accessMode: Type.Enum(['rw', 'ro'], { description: 'Always `rw`.' }),
    config: Type.Object(
      {
        bucketName: Type.String({ description: 'The bucket.', examples: ['training-data'] }),
        bucketEndpoint: Type.String({
          description: 'Where it is reached; empty: the usual place of its kind.',
          examples: ['https://objects.example.com'],
        }),
        bucketPrefix: Type.String({
          description: 'The folder of the bucket; empty: all of it.',
          examples: ['runs/2026/'],
        }),
        sessionId: Type.String({ description: 'Always empty.', examples: [''] }),
        writeBack: Type.Enum(['sync', 'lazy'], { description: 'When commands answer.' }),
      },
      { description: 'What the disk was created with, without secrets.' },
    ),
    connectionStatus: Type.Enum([...connectionStatuses], {
      description:
        'What the last attempt to use the bucket showed; `disconnected` before the first one.',
    }),
    authError: Type.Optional(
      Type.String({
        description: 'Why the bucket cannot be used.',
        examples: ['the access key is unknown to the storage'],
      }),
    ),
    authorizationType: Type.Enum(['iam', 'accessKeys', 'oauth'], {
      description: 'The kind of credentials.',
    }),
    checkedAt: Type.Optional(timestamp('When that was found out.')),
    problemCount: Type.Integer({
      description: 'How many keys the disk cannot show as they are.',
      examples: [0],
    }),
    problems: Type.Array(BucketProblem, { description: 'The first of them.' }),
  },
  { title: 'BucketMount' },
);
export type DiskMount = Type.Static<typeof DiskMount>;

/** A mount as stored, in the directory and in the manifest. */
export const StoredBucket = Type.Object({
  id: Type.String({ pattern: mountIdPattern }),
  type: Type.Enum([...mountTypes]),
  bucketName: Type.String(),
  /** Without a slash at its end. Absent: that of its type. */
  endpoint: Type.Optional(Type.String()),
  /** Empty, or ends in a slash. */
  prefix: Type.String(),
  writeBack: Type.Enum(['sync', 'lazy']),
  /** {@link BucketCredentials} as JSON, sealed for the disk and mount. */
  sealedCredentials: Type.String(),
});
export type StoredBucket = Type.Static<typeof StoredBucket>;

/** The context to which a sealed secret of a mount is bound. */
export const bucketSealContext = (disk: string, mount: string): string => `${disk} ${mount}`;

/** The result of the last check of a mount. */
export interface BucketStatus {
  readonly connectionStatus: (typeof connectionStatuses)[number];
  readonly authError?: string;
  readonly checkedAt: string;
  readonly problemCount: number;
  readonly problems: readonly Type.Static<typeof BucketProblem>[];
}
