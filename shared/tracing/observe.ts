import { createLogger, type Logger } from '../log.ts';
import type { ClusterConfig } from '../settings/cluster-config.ts';
import type { TracingConfig } from '../settings/tracing-settings.ts';

interface Observed {
  readonly cluster: Pick<ClusterConfig, 'region' | 'log'>;
  readonly tracing: TracingConfig | undefined;
}

/**
 * Opens the log of a process, and switches traces on if the configuration asks for them. The
 * packages of OpenTelemetry take time and memory, so they are loaded only then.
 * @param identity the process's id, by the name that the log has for it
 */
export async function observe(
  { cluster: { region, log: settings }, tracing }: Observed,
  service: 'control' | 'agent',
  identity: Readonly<Record<string, string>>,
): Promise<Logger> {
  const log = createLogger(service, { ...identity, region }, settings);
  if (tracing === undefined) return log;
  const { startTracing } = await import('./start-tracing.ts');
  const [instanceId] = Object.values(identity);
  startTracing(tracing, { service, instanceId, region }, log);
  return log;
}
