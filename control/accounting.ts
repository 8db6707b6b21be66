import type { Directory } from '../shared/directory/directory.ts';
import type { Logger } from '../shared/log.ts';
import { ReachableNetworks } from '../shared/reachable-networks.ts';
import type { ControlConfig } from './config.ts';
import { UsageCounter } from './region/usage-counter.ts';
import { WebhookDeliveries } from './region/webhooks/webhook-deliveries.ts';
import { AuditFile } from './http/audit-file.ts';
import type { AuditLogs } from './http/middleware/audit.ts';
import { RefusedStrangers } from './http/refused-strangers.ts';

/** A control node's records of the activity of accounts. */
export interface Accounting {
  readonly usage: UsageCounter;
  readonly logs: AuditLogs;
  close(): Promise<void>;
}

export function openAccounting(
  { cluster, http, auditLog, webhookNetworks }: ControlConfig,
  directory: Directory,
  log: Logger,
): Accounting {
  const { redis, region, encryptionKeys } = cluster;
  const usage = new UsageCounter(directory.usage, directory.accounts);
  const webhooks = new WebhookDeliveries({
    ...{ redis, region, encryptionKeys, log, webhooks: directory.webhooks },
    queued: directory.queuedDeliveries,
    networks: new ReachableNetworks(webhookNetworks),
  });
  const file = auditLog === undefined ? undefined : new AuditFile(auditLog);
  const strangers = file === undefined ? undefined : new RefusedStrangers(file, log);
  return {
    usage,
    logs: {
      activity: directory.activity,
      ...{ file, strangers },
      announce: (event) => webhooks.announce(event),
      trustedProxies: http.trustedProxies,
      log,
    },
    async close() {
      await strangers?.flush();
      await webhooks.close();
      await usage.close();
    },
  };
}
