import type { components } from './generated/api.ts';

type Schemas = components['schemas'];

/* Requests and answers of the API, under the names of its reference (docs/api.md). */

export type DiskInfo = Schemas['Disk'];
export type CreatedDiskInfo = Schemas['CreatedDisk'];
export type CreateDisk = Schemas['CreateDisk'];
export type BucketMount = Schemas['BucketMount'];
export type MountCredentials = Schemas['MountCredentials'];
export type DiskUser = Schemas['DiskUser'];
export type Delegation = Schemas['Delegation'];
export type ExecResult = Schemas['ExecResult'];
export type RunMultiExec = Schemas['RunMultiExec'];
export type RunGrep = Schemas['RunGrep'];
export type GrepMatch = Schemas['GrepMatch'];
export type GrepResult = Schemas['GrepResult'];
export type CreateShareUrl = Schemas['CreateShareUrl'];
export type ShareUrl = Schemas['ShareUrl'];
export type SandboxInfo = Schemas['Sandbox'];
export type CreateSandbox = Schemas['CreateSandbox'];
export type ForkSandbox = Schemas['ForkSandbox'];
export type StartSandbox = Schemas['StartSandbox'];
export type SandboxTimeout = Schemas['SandboxTimeout'];
export type ExecInSandbox = Schemas['ExecInSandbox'];
export type SandboxExec = Schemas['SandboxExec'];
export type SandboxProcess = Schemas['SandboxProcess'];
export type SandboxFile = Schemas['SandboxFile'];
export type NetworkPolicy = Schemas['NetworkPolicy'];
export type ShownNetworkPolicy = Schemas['ShownNetworkPolicy'];
export type NetworkDecision = Schemas['NetworkDecision'];
export type SandboxPort = Schemas['SandboxPort'];
export type PortToken = Schemas['PortToken'];
export type CreatedPortToken = Schemas['CreatedPortToken'];
export type CreatePortToken = Schemas['CreatePortToken'];
export type SnapshotInfo = Schemas['Snapshot'];
export type ImageInfo = Schemas['Image'];
export type BuildImage = Schemas['BuildImage'];
export type ApiKey = Schemas['ApiKey'];
export type CreatedApiKey = Schemas['CreatedApiKey'];
export type SandboxUsage = Schemas['SandboxUsage'];
export type ActivityEvent = Schemas['ActivityEvent'];
export type Usage = Schemas['Usage'];
export type HostInfo = Schemas['Host'];
export type Webhook = Schemas['Webhook'];
export type CreateWebhook = Schemas['CreateWebhook'];
export type CreatedWebhook = Schemas['CreatedWebhook'];
export type WebhookDelivery = Schemas['WebhookDelivery'];
