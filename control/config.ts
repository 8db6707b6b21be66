import { ConfigReader, readClusterConfig } from '../shared/config.ts';
import { type HttpSettings, readHttpSettings } from '../shared/http/http-settings.ts';
import { regionPattern } from '../shared/ids.ts';
import type { ServiceSettings } from './services/deps.ts';
import { readImageAliases } from './services/image-aliases.ts';
import { ZONE_DEFAULT, zonePattern } from '../shared/ingress-hostname.ts';
import { LIMITS } from '../shared/limits.ts';
import { MiB, TiB } from '../shared/units.ts';

export interface ControlConfig extends ServiceSettings {
  readonly http: HttpSettings;
  readonly host: string;
  /** Where the API is served. */
  readonly port: number;
  /** Agents' links, health and metrics; never public. */
  readonly internalPort: number;
  /** How agents reach this node. */
  readonly internalUrl: string;
  /** Where Redis keeps its files; set on a node that can see them. */
  readonly redisDataDir: string | undefined;
  /** Free bytes there below which new work is refused. */
  readonly redisReserveBytes: number;
}

/** @throws Error naming every setting that is missing or wrong */
export function readControlConfig(environment: NodeJS.ProcessEnv): ControlConfig {
  const reader = new ConfigReader(environment);
  const host = reader.string('CONTROL_HOST', { fallback: '127.0.0.1' });
  const internalPort = reader.integer('CONTROL_INTERNAL_PORT', { min: 1, max: 65_535 });
  const config: ControlConfig = {
    cluster: readClusterConfig(reader, regionPattern),
    http: readHttpSettings(reader, {
      objectRequests: LIMITS.objectRequestsPerNodeMax,
      downloads: LIMITS.downloadsPerNodeMax,
    }),
    host,
    port: reader.integer('CONTROL_PORT', { min: 1, max: 65_535 }),
    internalPort,
    internalUrl: reader.string('CONTROL_INTERNAL_URL', {
      fallback: `http://${host}:${internalPort}`,
      pattern: '^https?://',
    }),
    publicBaseUrl: reader.string('PUBLIC_BASE_URL', { pattern: '^https?://' }),
    ingressZone: reader.string('INGRESS_ZONE', { fallback: ZONE_DEFAULT, pattern: zonePattern }),
    regionIsPreview: reader.flag('REGION_PREVIEW'),
    execTimeoutMs: reader.integer('EXEC_TIMEOUT_MS', {
      fallback: 120_000,
      min: 100,
      max: LIMITS.execTimeoutMsMax,
    }),
    redisDataDir: environment['REDIS_DATA_DIR'] || undefined,
    redisReserveBytes: reader.integer('REDIS_RESERVE_BYTES', {
      fallback: 256 * MiB,
      min: 0,
      max: TiB,
    }),
    signingKeys: reader.secrets('SIGNING_KEYS', LIMITS.signingKeysMax),
    imageAliases: readImageAliases(reader),
  };
  reader.finish();
  return config;
}
