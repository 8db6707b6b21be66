import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { BucketDisk } from '../../agent/disks/buckets/bucket-disk.ts';
import { S3Bucket } from '../../agent/disks/buckets/s3-bucket.ts';
import type { DiskLayout } from '../../agent/disks/disk-layout.ts';
import type { ObjectStore } from '../../agent/edge/s3/store/object-store.ts';
import { FairTurns } from '../../agent/system/queues/fair-turns.ts';
import { run } from '../../agent/system/spawn.ts';
import { DISK_LIMITS } from '../../agent/disks/limits.ts';
import { createLogger } from '../../shared/log.ts';
import { ReachableNetworks } from '../../shared/reachable-networks.ts';
import type { StoredBucket } from '../../shared/schemas/disk-bucket.ts';
import { MiB } from '../../shared/units.ts';
import { BucketFront } from './bucket-front.ts';
import type { BucketServer, TestBucket } from './bucket-servers.ts';
import { mountDisk } from './mounted-disk.ts';
import { temporaryDirectory } from './temporary.ts';

const log = createLogger('test', {});
const networks = new ReachableNetworks(['127.0.0.0/8']);

/** A disk on a bucket, attached without an agent; its bucket stands behind a front. */
export interface OpenedBucketDisk extends AsyncDisposable {
  readonly bucket: TestBucket;
  readonly front: BucketFront;
  readonly mount: string;
  readonly layout: DiskLayout;
  readonly store: ObjectStore;
  readonly disk: BucketDisk;
  /** Runs a command in the disk's contents. @returns its output */
  readonly sh: (command: string) => Promise<string>;
  /** Looks at the bucket at once. */
  readonly look: () => Promise<void>;
  /** Goes on as another agent would that finds the disk mounted. */
  readonly attachAgain: () => Promise<void>;
}

/**
 * Attaches a disk to a new bucket.
 * @param fill puts what is in the bucket before the disk is attached
 */
export async function openBucketDisk(
  server: BucketServer,
  fill: (bucket: TestBucket) => Promise<void> = async () => undefined,
): Promise<OpenedBucketDisk> {
  await using undo = new AsyncDisposableStack();
  const bucket = await server.newBucket();
  await fill(bucket);
  const front = undo.use(await BucketFront.before(bucket.url));
  const { path } = undo.use(await temporaryDirectory());
  const group = join(path, 'group/cgroup.procs');
  await mkdir(dirname(group));
  await writeFile(group, '');
  const { mount, layout, store } = undo.use(await mountDisk(96 * MiB));
  const { bucketName, accessKeyId, secretAccessKey } = bucket.mountAt(front.url);
  const credentials = {
    accessKeyId: String(accessKeyId),
    secretAccessKey: String(secretAccessKey),
  };
  const stored: StoredBucket = {
    id: 'mnt-0000000000000000',
    type: 's3-compatible',
    bucketName: String(bucketName),
    endpoint: front.url,
    prefix: '',
    writeBack: 'sync',
    sealedCredentials: '',
  };
  const openTurns = new FairTurns({
    count: DISK_LIMITS.bucketOpensMax,
    perAccountMax: DISK_LIMITS.bucketOpensPerAccountMax,
    refusal: 'too many files are being fetched to be uploaded',
  });
  const open = async (): Promise<BucketDisk> => {
    const opened = await BucketDisk.open({
      ...{ accountId: 'account', diskId: 'disk', mount: stored, group, log, settleMs: 20_000 },
      layout: { mount, contents: layout.contents },
      openBucket: async () => new S3Bucket(stored, credentials, networks),
      socketPath: join(path, 'helper.sock'),
      isHeld: () => true,
      fetchTurn: async () => ({ release: () => undefined }),
      openTurn: (signal) => openTurns.acquire('account', signal),
      report: async () => undefined,
    });
    await opened.ready();
    return opened;
  };
  let disk = await open();
  const stack = undo.move();
  return {
    ...{ bucket, front, mount, layout, store },
    get disk() {
      return disk;
    },
    sh: (command) => run('sh', ['-c', `cd ${layout.contents} && ${command}`]),
    look: async () => {
      await disk.renew(stored);
      await disk.ready();
    },
    attachAgain: async () => {
      await disk.detach(0);
      await disk.unmounted();
      disk = await open();
    },
    [Symbol.asyncDispose]: async () => {
      await disk.detach(0);
      const closed = disk.unmounted();
      await stack.disposeAsync();
      await closed;
    },
  };
}
