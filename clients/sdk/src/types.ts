import type { components, operations } from './generated/api.ts';

type Schemas = components['schemas'];
/* Mapped types, so that compilers and the reference show the names of their aliases. */

type Named<Fields> = { [Name in keyof Fields]: Fields[Name] };
type Schema<Name extends keyof Schemas> = {
  [Field in keyof Schemas[Name]]: Schemas[Name][Field];
};

/* Requests and answers of the API, under the names of its reference (docs/api.md). */

export type DiskInfo = Schema<'Disk'>;
export type CreatedDiskInfo = Schema<'CreatedDisk'>;
export type CreateDisk = Schema<'CreateDisk'>;
export type BucketMount = Schema<'BucketMount'>;
export type MountCredentials = Schema<'MountCredentials'>;
/** A user to be added: with a token of its own, or by its role. */
export type NewDiskUser = Named<
  operations['addDiskUser']['requestBody']['content']['application/json']
>;
export type DiskUser = Schema<'DiskUser'>;
export type Delegation = Schema<'Delegation'>;
export type ExecResult = Schema<'ExecResult'>;
export type RunMultiExec = Schema<'RunMultiExec'>;
export type RunGrep = Schema<'RunGrep'>;
export type GrepMatch = Schema<'GrepMatch'>;
export type GrepResult = Schema<'GrepResult'>;
export type CreateShareUrl = Schema<'CreateShareUrl'>;
export type ShareUrl = Schema<'ShareUrl'>;
export type SandboxInfo = Schema<'Sandbox'>;
export type CreateSandbox = Schema<'CreateSandbox'>;
export type ForkSandbox = Schema<'ForkSandbox'>;
export type StartSandbox = Schema<'StartSandbox'>;
export type SandboxTimeout = Schema<'SandboxTimeout'>;
export type ExecInSandbox = Schema<'ExecInSandbox'>;
export type SandboxExec = Schema<'SandboxExec'>;
export type SandboxProcess = Schema<'SandboxProcess'>;
export type SandboxFile = Schema<'SandboxFile'>;
export type NetworkPolicy = Schema<'NetworkPolicy'>;
export type ShownNetworkPolicy = Schema<'ShownNetworkPolicy'>;
export type NetworkDecision = Schema<'NetworkDecision'>;
export type SandboxPort = Schema<'SandboxPort'>;
export type PortToken = Schema<'PortToken'>;
export type CreatedPortToken = Schema<'CreatedPortToken'>;
export type CreatePortToken = Schema<'CreatePortToken'>;
export type SnapshotInfo = Schema<'Snapshot'>;
export type ImageInfo = Schema<'Image'>;
export type BuildImage = Schema<'BuildImage'>;
export type CreateApiKey = Schema<'CreateApiKey'>;
export type ApiKey = Schema<'ApiKey'>;
export type CreatedApiKey = Schema<'CreatedApiKey'>;
export type EndedWithKey = Schema<'EndedWithKey'>;
export type SandboxUsage = Schema<'SandboxUsage'>;
export type ActivityEvent = Schema<'ActivityEvent'>;
export type Usage = Schema<'Usage'>;
export type HostInfo = Schema<'Host'>;
export type Webhook = Schema<'Webhook'>;
export type CreateWebhook = Schema<'CreateWebhook'>;
export type CreatedWebhook = Schema<'CreatedWebhook'>;
export type WebhookDelivery = Schema<'WebhookDelivery'>;
