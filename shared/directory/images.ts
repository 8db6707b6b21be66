import { createHash, randomBytes } from 'node:crypto';
import type { RedisClient } from './redis-client.ts';
import { imageIdPattern } from '../ids.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import {
  type BuildStep,
  buildSteps,
  type ImageFailureReason,
  type ImageStatus,
} from '../schemas/image.ts';
import { keys } from './keys.ts';
import { Script } from './script.ts';

/** Whose image it is: everybody's, or one account's. */
export interface ImageSourceOf {
  /** Normalised (`shared/image-reference.ts`). */
  readonly source: string;
  /** Undefined: public. */
  readonly accountId: string | undefined;
}

export interface ImageProgress {
  readonly step: BuildStep;
  readonly bytesDone: number;
  readonly bytesTotal: number;
}

/** The directory's record of an image. */
export interface ImageRecord extends ImageSourceOf {
  readonly id: string;
  readonly status: ImageStatus;
  /** Digest of the last successful build, also while another one is under way or has failed. */
  readonly digest: string | undefined;
  readonly failure: { readonly reason: ImageFailureReason; readonly message: string } | undefined;
  readonly progress: ImageProgress | undefined;
  readonly createdAt: string;
  readonly updatedAt: string;
}

export type ImageOutcome =
  | { readonly digest: string }
  | { readonly reason: ImageFailureReason; readonly message: string };

/** A build under way. Whoever has its token may renew and end it. */
export interface ImageBuildRef {
  readonly imageId: string;
  readonly token: string;
}

/** The same for every spelling of a source. */
export const imageIdOf = ({ source, accountId }: ImageSourceOf): string =>
  createHash('sha256')
    .update(`${accountId === undefined ? 'public' : `private:${accountId}`}\n${source}`)
    .digest('hex');

// A build is claimed by a key that expires, since a builder that is gone does not renew it.
// `formerStatus` is restored when no host can take the build. A build that was cut off leaves its
// own, which stays.
const begin = new Script(`
  if redis.call('EXISTS', KEYS[2]) == 1 then return 'joined' end
  local status = redis.call('HGET', KEYS[1], 'status')
  if ARGV[7] == '1' and status == 'ready' then return 'ready' end
  redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
  redis.call('HSETNX', KEYS[1], 'createdAt', ARGV[4])
  if status ~= 'building' then redis.call('HSET', KEYS[1], 'formerStatus', status or '') end
  redis.call('HSET', KEYS[1], 'source', ARGV[5], 'accountId', ARGV[6], 'status', 'building',
    'updatedAt', ARGV[4])
  redis.call('HDEL', KEYS[1], 'step', 'bytesDone', 'bytesTotal')
  local isBuilt = redis.call('HEXISTS', KEYS[1], 'digest') == 1
  redis.call('PEXPIRE', KEYS[1], isBuilt and ARGV[3] or ARGV[8])
  return 'begun'
`);
// A claim that has lapsed meanwhile, because Redis was away, is taken again unless another one is
// there.
const progress = new Script(`
  local claim = redis.call('GET', KEYS[2])
  if claim and claim ~= ARGV[1] then return 0 end
  if redis.call('HGET', KEYS[1], 'status') ~= 'building' then return 0 end
  redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
  if ARGV[3] ~= '' then
    redis.call('HSET', KEYS[1], 'step', ARGV[3], 'bytesDone', ARGV[4], 'bytesTotal', ARGV[5])
  end
  return 1
`);
const end = new Script(`
  local claim = redis.call('GET', KEYS[2])
  if claim and claim ~= ARGV[1] then return 0 end
  if redis.call('HGET', KEYS[1], 'status') ~= 'building' then return 0 end
  redis.call('DEL', KEYS[2])
  redis.call('HDEL', KEYS[1], 'formerStatus', 'step', 'bytesDone', 'bytesTotal', 'failureReason',
    'failureMessage')
  redis.call('HSET', KEYS[1], 'updatedAt', ARGV[2], unpack(ARGV, 4))
  if redis.call('HEXISTS', KEYS[1], 'digest') == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
  return 1
`);
// A record with a digest stays: when it does not say how it was before, its last build has failed.
const abandon = new Script(`
  if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
  redis.call('DEL', KEYS[2])
  local former = redis.call('HGET', KEYS[1], 'formerStatus')
  if former == 'ready' or former == 'failed' then
    redis.call('HSET', KEYS[1], 'status', former)
  elseif redis.call('HEXISTS', KEYS[1], 'digest') == 1 then
    redis.call('HSET', KEYS[1], 'status', 'failed')
    redis.call('HDEL', KEYS[1], 'failureReason', 'failureMessage')
  else
    redis.call('DEL', KEYS[1])
  end
  return 1
`);

const INTERRUPTED = {
  reason: 'interrupted',
  message: 'the host that built the image is gone; try again',
} as const;

const RESTARTED = {
  reason: 'interrupted',
  message: 'the agent that built the image was restarted; try again',
} as const;

/** The images that were asked for, and who builds which. */
export class Images {
  readonly #redis: RedisClient;
  readonly #region: string;

  constructor(redis: RedisClient, region: string) {
    this.#redis = redis;
    this.#region = region;
  }

  /**
   * Claims the build of an image, unless one is under way: also when two control nodes ask at once.
   * @param isFixed the source names a digest: what is ready stays so
   * @returns `begun` with the claim, which lapses unless it is renewed
   */
  async begin(
    image: ImageSourceOf,
    isFixed: boolean,
  ): Promise<{ kind: 'begun'; build: ImageBuildRef } | { kind: 'joined' | 'ready' }> {
    const imageId = imageIdOf(image);
    const token = randomBytes(16).toString('hex');
    const kind = await begin.run(this.#redis, this.#keysOf(imageId), [
      ...[
        token,
        DIRECTORY_LIMITS.imageBuildTtlMs,
        DIRECTORY_LIMITS.imageRecordTtlMs,
        new Date().toISOString(),
      ],
      ...[image.source, image.accountId ?? '', isFixed ? '1' : '0'],
      DIRECTORY_LIMITS.imageUnbuiltRecordTtlMs,
    ]);
    if (kind === 'begun') return { kind, build: { imageId, token } };
    return { kind: kind === 'ready' ? 'ready' : 'joined' };
  }

  /**
   * Renews the claim.
   * @returns false when it is lost: another build is under way, or none is wanted
   */
  async renew({ imageId, token }: ImageBuildRef, at?: ImageProgress): Promise<boolean> {
    const { step = '', bytesDone = 0, bytesTotal = 0 } = at ?? {};
    const args = [token, DIRECTORY_LIMITS.imageBuildTtlMs, step, bytesDone, bytesTotal];
    return (await progress.run(this.#redis, this.#keysOf(imageId), args)) === 1;
  }

  /** Ends a build. @returns false when its claim was lost before */
  async end({ imageId, token }: ImageBuildRef, outcome: ImageOutcome): Promise<boolean> {
    const fields =
      'digest' in outcome
        ? ['status', 'ready', 'digest', outcome.digest]
        : [
            ...['status', 'failed', 'failureReason', outcome.reason],
            ...['failureMessage', outcome.message],
          ];
    const args = [token, new Date().toISOString(), DIRECTORY_LIMITS.imageRecordTtlMs, ...fields];
    return (await end.run(this.#redis, this.#keysOf(imageId), args)) === 1;
  }

  /** Records that a host begins a build, for {@link endBuildsOf}. */
  async noteBuild(hostId: string, { imageId, token }: ImageBuildRef): Promise<void> {
    await this.#redis.sadd(keys.hostImageBuilds(hostId), `${imageId} ${token}`);
  }

  async forgetBuild(hostId: string, { imageId, token }: ImageBuildRef): Promise<void> {
    await this.#redis.srem(keys.hostImageBuilds(hostId), `${imageId} ${token}`);
  }

  /** Ends as interrupted the builds that a former agent of this host left unfinished. */
  async endBuildsOf(hostId: string): Promise<void> {
    for (const member of await this.#redis.smembers(keys.hostImageBuilds(hostId))) {
      const [imageId = '', token = ''] = member.split(' ');
      const build = { imageId, token };
      await this.end(build, RESTARTED);
      await this.forgetBuild(hostId, build);
    }
  }

  /** Undoes a build that no host has begun: the image's record is as before it. */
  async abandon({ imageId, token }: ImageBuildRef): Promise<void> {
    await abandon.run(this.#redis, this.#keysOf(imageId), [token]);
  }

  /** @returns undefined also for another account's private image */
  async find(accountId: string, imageId: string): Promise<ImageRecord | undefined> {
    if (!new RegExp(imageIdPattern, 'u').test(imageId)) return undefined;
    const [recordKey, buildKey] = this.#keysOf(imageId);
    const replies = await this.#redis.pipeline().hgetall(recordKey).exists(buildKey).exec();
    const [fields, isClaimed] = (replies ?? []).map(([error, value]) => {
      if (error !== null) throw error;
      return value;
    }) as [Record<string, string>, number];
    const record = toRecord(imageId, fields, isClaimed === 1);
    return record?.accountId === undefined || record.accountId === accountId ? record : undefined;
  }

  /** Extends the time for which the directory remembers an image; called when it is used. */
  async touch(imageId: string): Promise<void> {
    await this.#redis.pexpire(this.#keysOf(imageId)[0], DIRECTORY_LIMITS.imageRecordTtlMs);
  }

  #keysOf(imageId: string): [record: string, build: string] {
    return [keys.image(this.#region, imageId), keys.imageBuild(this.#region, imageId)];
  }
}

function toRecord(
  id: string,
  fields: Readonly<Record<string, string>>,
  isClaimed: boolean,
): ImageRecord | undefined {
  const { source, accountId, status, digest, createdAt = '', updatedAt = '' } = fields;
  if (source === undefined) return undefined;
  const isBuilding = status === 'building';
  const shown: ImageStatus = isBuilding ? (isClaimed ? 'building' : 'failed') : toStatus(status);
  return {
    ...{ id, source, digest, createdAt, updatedAt },
    accountId: accountId === '' ? undefined : accountId,
    status: shown,
    failure: shown === 'failed' ? failureOf(fields, isBuilding) : undefined,
    progress: shown === 'building' ? progressOf(fields) : undefined,
  };
}

const toStatus = (text: string | undefined): ImageStatus => (text === 'ready' ? 'ready' : 'failed');

/** @param isAbandoned the claim of its build has lapsed without an outcome */
function failureOf(
  { failureReason, failureMessage = '' }: Readonly<Record<string, string>>,
  isAbandoned: boolean,
): ImageRecord['failure'] {
  if (isAbandoned || failureReason === undefined) return INTERRUPTED;
  const reason = failureReason === 'invalid_source' ? failureReason : 'interrupted';
  return { reason, message: failureMessage };
}

function progressOf({
  step,
  bytesDone,
  bytesTotal,
}: Readonly<Record<string, string>>): ImageProgress | undefined {
  const known = buildSteps.find((each) => each === step);
  if (known === undefined) return undefined;
  return { step: known, bytesDone: Number(bytesDone), bytesTotal: Number(bytesTotal) };
}
