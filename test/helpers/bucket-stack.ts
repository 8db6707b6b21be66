import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import { createDisk, exec } from './disks.ts';
import { ObjectClient, s3UrlOf } from './objects.ts';
import { Stack } from './stack.ts';
import type { CreatedDisk } from '../../shared/schemas/disk.ts';
import type { ApiClient } from './api.ts';
import { type AzuriteServer, startAzurite } from './azurite.ts';
import { BucketFront } from './bucket-front.ts';
import { berthServer, type BucketServer, startS3rver, type TestBucket } from './bucket-servers.ts';
import { LOOPBACK_BUCKETS, readMount } from './buckets.ts';
import { startRadosgw } from './radosgw.ts';
import type { Environment } from './daemon.ts';

type ServerName = 'a Berth disk' | 's3rver' | 'Azurite' | 'radosgw';

export interface BucketContext {
  readonly stack: Stack;
  readonly api: ApiClient;
  /** Client of the stack's own object API. */
  readonly objects: ObjectClient;
  /** Makes a bucket at the first server, or at the named one. */
  readonly newBucket: (name?: ServerName) => Promise<TestBucket>;
  /** Stands before the server that a bucket is of. */
  readonly frontOf: (bucket: TestBucket, name: ServerName) => Promise<BucketFront>;
  readonly undo: AsyncDisposableStack;
}

/** Runs a test against storage of several kinds. */
type OnEach = (
  names: readonly ServerName[],
  title: string,
  run: (t: ExecutionContext<BucketContext>, bucket: TestBucket, name: ServerName) => Promise<void>,
) => void;

/**
 * Tests of a file that share one stack and the servers that it names besides the stack itself,
 * which is a server of buckets, too.
 */
export function bucketTest(
  names: readonly Exclude<ServerName, 'a Berth disk'>[],
  settings: Environment = {},
): { test: TestFn<BucketContext>; onEach: OnEach } {
  const test = anyTest as TestFn<BucketContext>;
  test.before(async (t) => {
    const undo = new AsyncDisposableStack();
    Object.assign(t.context, { undo });
    Object.assign(t.context, await startAll(names, settings, undo));
  });
  test.after.always(async (t) => {
    await t.context.undo.disposeAsync();
  });
  const onEach: OnEach = (kinds, title, run) => {
    for (const name of kinds) {
      test(`${title} (${name})`, async (t) => run(t, await t.context.newBucket(name), name));
    }
  };
  return { test, onEach };
}

async function startAll(
  names: readonly ServerName[],
  settings: Environment,
  undo: AsyncDisposableStack,
): Promise<Omit<BucketContext, 'undo'>> {
  const servers = new Map<ServerName, BucketServer>();
  let azurite: AzuriteServer | undefined;
  if (names.includes('Azurite')) {
    azurite = undo.use(await startAzurite());
    servers.set('Azurite', azurite);
  }
  if (names.includes('s3rver')) servers.set('s3rver', undo.use(await startS3rver()));
  if (names.includes('radosgw')) servers.set('radosgw', undo.use(await startRadosgw()));
  const stack = await Stack.start({ ...LOOPBACK_BUCKETS, ...azurite?.settings, ...settings });
  undo.defer(async () => {
    await stack.stop();
  });
  const api = await stack.newClient();
  servers.set('a Berth disk', undo.use(berthServer(stack, api)));
  return {
    ...{ stack, api, objects: new ObjectClient(s3UrlOf(stack), api.key) },
    newBucket: (name = 'a Berth disk') => {
      const server = servers.get(name);
      if (server === undefined) throw new Error(`${name} is not among the servers of this file`);
      return server.newBucket();
    },
    frontOf: ({ url }, name) =>
      BucketFront.before(url, name === 'Azurite' ? azurite?.certificate : undefined),
  };
}

/** Creates a disk that stands on the bucket, reached at this URL. */
export const diskOn = (
  api: ApiClient,
  bucket: TestBucket,
  change: Record<string, unknown> = {},
  url = bucket.url,
): Promise<CreatedDisk> => createDisk(api, { mounts: [{ ...bucket.mountAt(url), ...change }] });

/** Output of a command that must succeed. */
export async function output(api: ApiClient, disk: string, command: string): Promise<string> {
  const { exitCode, stdout, stderr } = await exec(api, disk, command);
  if (exitCode !== 0) throw new Error(`${command} ended with ${exitCode}: ${stdout}${stderr}`);
  return stdout;
}

/** The disk that a bucket of the stack itself is. */
export const diskOf = (bucket: TestBucket): string =>
  String(bucket.mountAt(bucket.url)['bucketName']);

export const textOf = async (bucket: TestBucket, key: string): Promise<string | undefined> =>
  (await bucket.get(key))?.toString();

/** Has the disk look at its bucket at once, where it would do so within half a minute. */
export async function lookAtBucket(
  api: ApiClient,
  diskId: string,
  bucket: TestBucket,
): Promise<void> {
  const { id } = await readMount(api, diskId);
  await api.data('POST', `/api/disks/${diskId}/mounts/${id}/credentials`, bucket.credentials);
}
