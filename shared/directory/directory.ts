import type { RedisClient } from './redis-client.ts';
import { AccountLimitSettings } from './account-limits.ts';
import { AccountQuotas } from './account-quotas.ts';
import { Accounts } from './accounts.ts';
import { Activity } from './activity.ts';
import { ApiKeys } from './api-keys.ts';
import { ControlNodes } from './control-nodes.ts';
import { DiskLeases } from './disk-leases.ts';
import { Disks } from './disks.ts';
import { EndedSessions } from './ended-sessions.ts';
import { HostInvitations } from './host-invitations.ts';
import { Hosts } from './hosts.ts';
import { Images } from './images.ts';
import { IdempotencyKeys } from './idempotency-keys.ts';
import { type ReplicaConfirmation, unconfirmed } from './replica-confirmation.ts';
import { QueuedDeliveries } from './queued-deliveries.ts';
import { QueuedJobs } from './queued-jobs.ts';
import { SandboxCapacity } from './capacity.ts';
import { PortTokens } from './port-tokens.ts';
import { SandboxRoutes } from './sandbox-routes.ts';
import { Sandboxes } from './sandboxes.ts';
import { Snapshots } from './snapshots.ts';
import { SpaceAlert } from './space-alert.ts';
import { UsageRecords } from './usage.ts';
import { Webhooks } from './webhooks.ts';

/** The records in Redis, as one region sees them. */
export interface Directory {
  readonly accountLimits: AccountLimitSettings;
  readonly accountQuotas: AccountQuotas;
  readonly accounts: Accounts;
  readonly activity: Activity;
  readonly apiKeys: ApiKeys;
  readonly controlNodes: ControlNodes;
  readonly disks: Disks;
  readonly diskLeases: DiskLeases;
  readonly endedSessions: EndedSessions;
  readonly hostInvitations: HostInvitations;
  readonly hosts: Hosts;
  readonly idempotencyKeys: IdempotencyKeys;
  readonly images: Images;
  readonly portTokens: PortTokens;
  readonly queuedDeliveries: QueuedDeliveries;
  readonly queuedJobs: QueuedJobs;
  readonly sandboxCapacity: SandboxCapacity;
  readonly sandboxRoutes: SandboxRoutes;
  readonly sandboxes: Sandboxes;
  readonly snapshots: Snapshots;
  readonly spaceAlert: SpaceAlert;
  readonly usage: UsageRecords;
  readonly webhooks: Webhooks;
}

/**
 * @param confirmation of leases and of claims of an `Idempotency-Key`; what callers are told is
 *   confirmed where it is told
 */
export const openDirectory = (
  redis: RedisClient,
  region: string,
  confirmation: ReplicaConfirmation = unconfirmed,
): Directory => {
  const apiKeys = new ApiKeys(redis);
  return {
    accountLimits: new AccountLimitSettings(redis),
    accountQuotas: new AccountQuotas(redis, region),
    accounts: new Accounts(redis),
    activity: new Activity(redis),
    apiKeys,
    controlNodes: new ControlNodes(redis, region),
    disks: new Disks(redis, region),
    diskLeases: new DiskLeases(redis, region, confirmation),
    endedSessions: new EndedSessions(redis),
    hostInvitations: new HostInvitations(redis, region),
    hosts: new Hosts(redis, region),
    idempotencyKeys: new IdempotencyKeys(redis, confirmation),
    images: new Images(redis, region),
    portTokens: new PortTokens(redis, region),
    queuedDeliveries: new QueuedDeliveries(redis, region),
    queuedJobs: new QueuedJobs(redis),
    sandboxCapacity: new SandboxCapacity(redis),
    sandboxRoutes: new SandboxRoutes(redis, region, apiKeys),
    sandboxes: new Sandboxes(redis, region),
    snapshots: new Snapshots(redis, region),
    spaceAlert: new SpaceAlert(redis),
    usage: new UsageRecords(redis, region),
    webhooks: new Webhooks(redis, apiKeys),
  };
};
