import { join } from 'node:path';
import Type from 'typebox';
import {
  certificatePaths,
  readClusterConfig,
  readInternalUrl,
  togetherOrNone,
} from '../shared/settings/cluster-config.ts';
import { type HttpSettings, readHttpSettings } from '../shared/settings/http-settings.ts';
import { REGION_LIMITS } from './region/limits.ts';
import { CommonSettings } from '../shared/settings/cluster-settings.ts';
import { ControlSettings } from '../shared/settings/control-settings.ts';
import {
  readSettings,
  refuseProblems,
  type SettingTexts,
} from '../shared/settings/read-settings.ts';
import { readTracing, type TracingConfig } from '../shared/settings/tracing-settings.ts';
import { type CertificatePaths, checkCertificates } from '../shared/tls/certificates.ts';
import type { ServiceSettings } from './region/deps.ts';
import { readImageAliases } from './region/image-aliases.ts';
import { toRing } from '../shared/secrets.ts';

export interface ControlConfig extends ServiceSettings {
  /** Undefined: traces are off. */
  readonly tracing: TracingConfig | undefined;
  readonly http: HttpSettings;
  /** Certificate of the public port; undefined: it is not encrypted. */
  readonly tls: CertificatePaths | undefined;
  readonly host: string;
  /** Where the API is served. */
  readonly port: number;
  /** Agents' links, health and metrics; never public. */
  readonly internalPort: number;
  /** Where set-up has put the console's built files. */
  readonly consoleDir: string;
  /** How agents reach this node. */
  readonly internalUrl: string;
  /** How many hosts are to link to it by themselves. */
  readonly hostsLinkedMax: number;
  /** How long it serves on after it was told to stop. */
  readonly leaveMs: number;
  /** Where Redis keeps its files; set on a node that can see them. */
  readonly redisDataDir: string | undefined;
  /** The file that every change is appended to. */
  readonly auditLog: string | undefined;
  /** Free bytes in `redisDataDir` below which new work is refused. */
  readonly redisReserveBytes: number;
}

/** In a checkout. */
const CONSOLE_DIR = join(import.meta.dirname, '../.local/console');

const Settings = Type.Object({ ...CommonSettings.properties, ...ControlSettings.properties });

/** @throws ConfigurationError naming every setting that is missing or wrong */
export function readControlConfig(texts: SettingTexts): ControlConfig {
  const settings = readSettings(Settings, texts);
  const { CONTROL_HOST: host, CONTROL_INTERNAL_PORT: internalPort } = settings;
  const { CONTROL_TLS_CERT, CONTROL_TLS_KEY } = settings;
  refuseProblems(togetherOrNone(settings, ['CONTROL_TLS_CERT', 'CONTROL_TLS_KEY']));
  const cluster = readClusterConfig(settings);
  return {
    cluster,
    tracing: readTracing(settings),
    http: readHttpSettings(settings, {
      objectRequests: REGION_LIMITS.objectRequestsPerNodeMax,
      downloads: REGION_LIMITS.downloadsPerNodeMax,
    }),
    host,
    port: settings.CONTROL_PORT,
    internalPort,
    tls: certificatePaths(CONTROL_TLS_CERT, CONTROL_TLS_KEY),
    internalUrl: readInternalUrl(cluster, {
      name: 'CONTROL_INTERNAL_URL',
      url: settings.CONTROL_INTERNAL_URL,
      address: `${host}:${internalPort}`,
    }),
    leaveMs: settings.CONTROL_LEAVE_MS,
    hostsLinkedMax: settings.CONTROL_LINKED_HOSTS,
    consoleDir: settings.CONSOLE_DIR ?? CONSOLE_DIR,
    publicBaseUrl: settings.PUBLIC_BASE_URL,
    ingressZone: settings.INGRESS_ZONE,
    regionIsPreview: settings.REGION_PREVIEW,
    execTimeoutMs: settings.EXEC_TIMEOUT_MS,
    redisDataDir: settings.REDIS_DATA_DIR,
    auditLog: settings.AUDIT_LOG,
    webhookNetworks: settings.WEBHOOK_REACHABLE_NETWORKS,
    redisReserveBytes: settings.REDIS_RESERVE_BYTES,
    signingKeys: toRing(settings.SIGNING_KEYS),
    imageAliases: readImageAliases(settings.IMAGE_ALIASES),
  };
}

/** Reads the files that the configuration names. @throws Error when one does not fit */
export const checkControlConfig = ({ tls, cluster }: ControlConfig): Promise<void> =>
  checkCertificates([tls, cluster.tls]);
