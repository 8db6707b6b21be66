import { randomBytes } from 'node:crypto';
import type { RedisTarget } from '../shared/tls/redis-tls.ts';
import type { Environment } from '../test/helpers/daemon.ts';

/** Settings for all parts of a simulated region. */
export interface RegionSettings {
  readonly redis: RedisTarget;
  readonly clusterId: string;
  readonly clusterSecret: string;
  readonly encryptionKey: string;
  readonly region: string;
}

export const newRegionSettings = (redis: RedisTarget): RegionSettings => ({
  redis,
  clusterId: `cl-${randomBytes(4).toString('hex')}`,
  clusterSecret: randomBytes(32).toString('base64url'),
  encryptionKey: randomBytes(32).toString('base64'),
  region: 'bench-region',
});

/** The environment of a control node of the region, but for its Redis. */
export const controlEnvironment = (
  settings: RegionSettings,
  { port, internalPort }: { readonly port: number; readonly internalPort: number },
  signingKey: string,
): Environment => ({
  CLUSTER_ID: settings.clusterId,
  CLUSTER_SECRET: settings.clusterSecret,
  ENCRYPTION_KEY: settings.encryptionKey,
  REGION: settings.region,
  SIGNING_KEYS: signingKey,
  LOG_LEVEL: 'warn',
  CONTROL_PORT: String(port),
  CONTROL_INTERNAL_PORT: String(internalPort),
  PUBLIC_BASE_URL: `http://127.0.0.1:${port}`,
});
