/* The baseline of the read benchmark: Koa, the same reads from Redis, and nothing else. */
import { Redis } from 'ioredis';
import Koa from 'koa';
import { keys } from '../shared/directory/keys.ts';
import { sha256 } from '../shared/secrets.ts';

const setting = (name: string): string => process.env[name] ?? '';
const account = setting('BARE_ACCOUNT');
const disk = setting('BARE_DISK');
const region = setting('REGION');
const apiKey = keys.apiKey(sha256(setting('BARE_KEY')));

const redis = new Redis(setting('REDIS_URL'), { enableAutoPipelining: true });
const app = new Koa();
app.use(async (ctx) => {
  await redis.hmget(apiKey, 'accountId', 'organization');
  const pipeline = redis.pipeline();
  pipeline.hgetall(keys.disk(region, account, disk));
  pipeline.hgetall(keys.diskUsers(region, account, disk));
  pipeline.get(keys.diskLease(region, account, disk));
  ctx.body = { success: true, data: await pipeline.exec() };
});
app.listen(Number(setting('BARE_PORT')), '127.0.0.1');
