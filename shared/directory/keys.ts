/**
 * Builds every Redis key; nothing else spells one. Keys that change together carry one hash tag
 * (`{…}`), so that each Lua script touches a single hash slot, as Redis Cluster requires.
 */
export const keys = {
  accountNames: () => 'berth:{accounts}:names',
  replicaMark: (region: string) => `berth:{${region}}:replica-mark`,
  /**
   * The same in a Redis Cluster, where each primary has slots of its own: numbers lead to all of
   * them.
   */
  slotMark: (number: number) => `berth:{mark-${number}}`,
  account: (accountId: string) => `berth:{${accountId}}:account`,
  accountLimits: (accountId: string) => `berth:{${accountId}}:limits`,
  /** Made by the library that counts requests, with this key. */
  accountRequests: (accountId: string) => `berth:{${accountId}}:requests`,
  usage: (region: string, accountId: string, month: string) =>
    `berth:{${accountId}}:${region}:usage:${month}`,
  usageMeasuredAt: (region: string, accountId: string) =>
    `berth:{${accountId}}:${region}:usage-measured-at`,
  webhooks: (accountId: string) => `berth:{${accountId}}:webhooks`,
  webhookDeliveries: (accountId: string, id: string) =>
    `berth:{${accountId}}:webhook:${id}:deliveries`,
  // All accounts of a region share a tag, as with idempotency keys; it is that of the queue.
  queuedDeliveries: (region: string) => `berth:{webhooks}:${region}:queued-deliveries`,
  queuedDeliveriesOf: (region: string, accountId: string) =>
    `berth:{webhooks}:${region}:queued-deliveries:${accountId}`,
  accountRegions: (accountId: string) => `berth:{${accountId}}:regions`,

  endedSession: (id: string) => `berth:{${id}}:ended-session`,
  apiKey: (keyId: string) => `berth:{${keyId}}:api-key`,
  apiKeys: (accountId: string) => `berth:{${accountId}}:api-keys`,
  activity: (accountId: string) => `berth:{${accountId}}:activity`,
  deletions: (accountId: string) => `berth:{${accountId}}:deletions`,
  refusals: (accountId: string) => `berth:{${accountId}}:refusals`,

  disks: (region: string, accountId: string) => `berth:{${accountId}}:${region}:disks`,
  diskNames: (region: string, accountId: string) => `berth:{${accountId}}:${region}:disk-names`,
  disk: (region: string, accountId: string, diskId: string) =>
    `berth:{${accountId}}:${region}:disk:${diskId}`,
  diskUsers: (region: string, accountId: string, diskId: string) =>
    `berth:{${accountId}}:${region}:disk:${diskId}:users`,
  disksOfUser: (region: string, identifierHash: string) =>
    `berth:{${identifierHash}}:${region}:disks-of-user`,
  diskAccount: (region: string, diskId: string) => `berth:{${diskId}}:${region}:disk-account`,
  diskLease: (region: string, accountId: string, diskId: string) =>
    `berth:{${accountId}}:${region}:disk:${diskId}:lease`,
  diskEpoch: (region: string, accountId: string, diskId: string) =>
    `berth:{${accountId}}:${region}:disk:${diskId}:epoch`,
  /** The hosts that may have the disk's image attached, with a lease or without. */
  diskAttached: (region: string, accountId: string, diskId: string) =>
    `berth:{${accountId}}:${region}:disk:${diskId}:attached`,

  sandboxes: (region: string, accountId: string) => `berth:{${accountId}}:${region}:sandboxes`,
  sandboxNames: (region: string, accountId: string) =>
    `berth:{${accountId}}:${region}:sandbox-names`,
  sandboxClaims: (region: string, accountId: string) =>
    `berth:{${accountId}}:${region}:sandbox-claims`,
  sandboxShares: (region: string, accountId: string) =>
    `berth:{${accountId}}:${region}:sandbox-shares`,
  snapshots: (region: string, accountId: string) => `berth:{${accountId}}:${region}:snapshots`,
  snapshotNames: (region: string, accountId: string) =>
    `berth:{${accountId}}:${region}:snapshot-names`,
  snapshotClaims: (region: string, accountId: string) =>
    `berth:{${accountId}}:${region}:snapshot-claims`,
  /** Host that removes a sandbox or snapshot whose creation failed. */
  undone: (region: string, accountId: string, id: string) =>
    `berth:{${accountId}}:${region}:undone:${id}`,
  sandboxRoute: (region: string, routeId: string) => `berth:{${routeId}}:${region}:sandbox-route`,
  portTokens: (region: string, routeId: string) => `berth:{${routeId}}:${region}:port-tokens`,
  portTokenEnds: (region: string, routeId: string) =>
    `berth:{${routeId}}:${region}:port-token-ends`,
  sandboxCapacity: (hostId: string) => `berth:{${hostId}}:sandbox-capacity`,

  // All accounts share a tag, because the script that limits one account also limits them all.
  idempotencyKey: (accountId: string, keyHash: string) =>
    `berth:{idempotency}:key:${accountId}:${keyHash}`,
  idempotencyAnswer: (accountId: string, keyHash: string) =>
    `berth:{idempotency}:answer:${accountId}:${keyHash}`,
  idempotencyAnswers: (accountId: string) => `berth:{idempotency}:answers:${accountId}`,
  idempotencyUse: () => 'berth:{idempotency}:use',
  idempotencyEnds: () => 'berth:{idempotency}:ends',

  image: (region: string, imageId: string) => `berth:{${imageId}}:${region}:image`,
  hostImageBuilds: (hostId: string) => `berth:{${hostId}}:image-builds`,
  imageBuild: (region: string, imageId: string) => `berth:{${imageId}}:${region}:image-build`,

  diskDeletions: (region: string) => `berth:{${region}}:disk-deletions`,
  hosts: (region: string) => `berth:{${region}}:hosts`,
  hostReports: (region: string) => `berth:{${region}}:host-reports`,
  hostOrders: (region: string) => `berth:{${region}}:host-orders`,
  removedHosts: (region: string) => `berth:{${region}}:removed-hosts`,
  hostFences: (region: string) => `berth:{${region}}:host-fences`,
  hostInvitation: (region: string, id: string) => `berth:{${id}}:${region}:host-invitation`,
  joinAttempts: (region: string, address: string) => `berth:{${region}}:join-attempts:${address}`,
  directoryLow: () => 'berth:{directory}:low',
  controlNodes: (region: string) => `berth:{${region}}:control-nodes`,
  /** A channel, which holds nothing. */
  cancelledTools: (region: string) => `berth:{${region}}:cancelled-tools`,
} as const;

/** Names and prefix of BullMQ queues. BullMQ refuses `:` in names. */
export const queues = {
  prefix: (hostId: string) => `berth:{${hostId}}:bull`,
  /** Commands and searches in containers. */
  exec: (hostId: string) => `exec-${hostId}`,
  /** Jobs for the host's sandboxes. Some are held until the transition that they began is over. */
  sandbox: (hostId: string) => `sandbox-${hostId}`,
  /** Idempotent jobs about disks, such as creating and deleting them. */
  host: (hostId: string) => `host-${hostId}`,
  /** Events for webhooks; control nodes send them. */
  webhooks: (region: string) => `webhooks-${region}`,
} as const;
