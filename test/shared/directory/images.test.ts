import { imageIdOf, Images, type ImageSourceOf } from '../../../shared/directory/images.ts';
import { keys } from '../../../shared/directory/keys.ts';
import { newAccountId } from '../../../shared/ids.ts';
import { DIRECTORY_LIMITS } from '../../../shared/directory/limits.ts';
import { IMAGE_LIMITS } from '../../../agent/images/limits.ts';
import { redisTest } from '../../helpers/redis-test.ts';

const REGION = 'local-test';

const test = redisTest((redis) => ({ images: new Images(redis, REGION) }));

const digest = `sha256:${'a'.repeat(64)}`;

async function begin(images: Images, image: ImageSourceOf) {
  const begun = await images.begin(image, false);
  if (begun.kind !== 'begun') throw new Error(`the build was ${begun.kind}`);
  return begun.build;
}

test('an image stays ready when a build of it is cut off and no host takes the next', async (t) => {
  const { images, redis } = t.context;
  const image = { source: 'docker.io/library/ready:latest', accountId: undefined };
  const account = newAccountId();
  const first = await begin(images, image);
  await images.end(first, { digest });
  await begin(images, image);
  const claim = keys.imageBuild(REGION, first.imageId);
  t.is(await redis.del(claim), 1, 'the claim lapses');
  await images.abandon(await begin(images, image));
  t.like(await images.find(account, first.imageId), { status: 'ready', digest });
  // A version that forgot how the image was before may have written the record.
  const build = await begin(images, image);
  await redis.hset(keys.image(REGION, first.imageId), 'formerStatus', 'building');
  await images.abandon(build);
  const { status, digest: kept, failure } = (await images.find(account, first.imageId)) ?? {};
  t.deepEqual([status, kept, failure?.reason], ['failed', digest, 'interrupted']);
});

test('an image that was never built is forgotten when no host takes its build', async (t) => {
  const { images } = t.context;
  const build = await begin(images, {
    source: 'docker.io/library/new:latest',
    accountId: undefined,
  });
  await images.abandon(build);
  t.is(await images.find(newAccountId(), build.imageId), undefined);
});

test('an image is remembered for long only once it has had a good build', async (t) => {
  const { images, redis } = t.context;
  const image = { source: 'registry.example/some:one', accountId: undefined };
  const failure = { reason: 'invalid_source', message: 'there is no such image' } as const;
  const imageId = imageIdOf(image);
  const isForgottenSoon = async (): Promise<boolean> => {
    const ttlMs = await redis.pttl(keys.image(REGION, imageId));
    t.true(ttlMs > IMAGE_LIMITS.imageBuildMsMax);
    return ttlMs <= DIRECTORY_LIMITS.imageUnbuiltRecordTtlMs;
  };
  const build = async (outcome: Parameters<Images['end']>[1]): Promise<void> => {
    t.true(await images.end(await begin(images, image), outcome));
  };
  await images.begin(image, false);
  t.true(await isForgottenSoon(), 'its host may be lost');
  await redis.del(keys.imageBuild(REGION, imageId));
  await build(failure);
  t.true(await isForgottenSoon());
  t.like(await images.find('account', imageId), { status: 'failed', failure });
  await build({ digest });
  t.false(await isForgottenSoon());
  await build(failure);
  t.false(await isForgottenSoon(), 'the former build is still good');
  t.like(await images.find('account', imageId), { status: 'failed', digest });
});
