import type { ClusterConfig } from '../../shared/settings/cluster-config.ts';
import type { HttpSettings } from '../../shared/settings/http-settings.ts';
import type { Directory } from '../../shared/directory/directory.ts';
import type { ConnectionSigner } from '../../shared/links/connection-token.ts';
import type { AgentHub } from './agent-hub.ts';
import type { DirectorySpace } from './directory-space.ts';
import type { DataProxy } from './data-proxy.ts';
import type { FilesProxy } from './files-proxy.ts';
import type { HostFinder } from './host-finder.ts';
import type { JobDispatch } from './job-dispatch.ts';
import type { UsageCounter } from './usage-counter.ts';
import type { ImageAliases } from './image-aliases.ts';
import type { Ring } from '../../shared/secrets.ts';

/** The settings that services work with; `control/config.ts` reads them. */
export interface ServiceSettings {
  readonly cluster: ClusterConfig;
  readonly http: Pick<HttpSettings, 'trustedProxies'>;
  /** Base of the URLs that callers see. */
  readonly publicBaseUrl: string;
  /** The domain below which ports of sandboxes have their hostnames. */
  readonly ingressZone: string;
  /** Only accounts that were let in may create disks here. */
  readonly regionIsPreview: boolean;
  readonly execTimeoutMs: number;
  /** Sign share links and, derived, connection URLs: the first signs, all verify. */
  readonly signingKeys: Ring<string>;
  /** Private networks that webhooks may be of. */
  readonly webhookNetworks: readonly string[];
  /** Names that callers may use for the image of a host, whatever it is. */
  readonly imageAliases: ImageAliases;
}

/** Dependencies of handlers and services; made once in main.ts. */
export interface Deps {
  /** Id of this control node. */
  readonly nodeId: string;
  readonly config: ServiceSettings;
  readonly directory: Directory;
  readonly directorySpace: DirectorySpace;
  readonly hub: AgentHub;
  readonly hosts: HostFinder;
  readonly jobs: JobDispatch;
  readonly data: DataProxy;
  readonly files: FilesProxy;
  readonly usage: UsageCounter;
  /** Signs the URLs of sandbox connections. */
  readonly connections: ConnectionSigner;
}
