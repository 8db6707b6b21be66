import { activityRoutes } from './api/accounts/activity-routes.ts';
import { apiKeyRoutes } from './api/accounts/api-keys-routes.ts';
import { diskMountRoutes } from './api/disks/buckets-routes.ts';
import { diskUserRoutes } from './api/disks/disk-users-routes.ts';
import { diskRoutes } from './api/disks/disks-routes.ts';
import { execRoutes } from './api/execs/execs-routes.ts';
import { grepRoutes } from './api/execs/greps-routes.ts';
import { hostRoutes } from './api/hosts/hosts-routes.ts';
import { imageRoutes } from './api/images/images-routes.ts';
import { sandboxConnectionRoutes } from './api/sandboxes/sandbox-connections-routes.ts';
import { sandboxExecRoutes } from './api/sandboxes/sandbox-execs-routes.ts';
import { sandboxFileRoutes } from './api/sandboxes/sandbox-files-routes.ts';
import { sandboxLifecycleRoutes } from './api/sandboxes/sandbox-lifecycle-routes.ts';
import { sandboxPortRoutes } from './api/sandboxes/sandbox-ports-routes.ts';
import { sandboxNetworkRoutes } from './api/sandboxes/sandbox-network-routes.ts';
import { sandboxRoutes } from './api/sandboxes/sandboxes-routes.ts';
import { snapshotRoutes } from './api/snapshots/snapshots-routes.ts';
import { shareRoutes } from './api/disks/shares-routes.ts';
import { usageRoutes } from './api/accounts/usage-routes.ts';
import { webhookRoutes } from './api/webhooks/webhooks-routes.ts';
import type { Route } from './http/route.ts';

/** Every endpoint of the API. Router, validation and the OpenAPI document are made from this. */
export const routes: readonly Route[] = [
  ...diskRoutes,
  ...diskMountRoutes,
  ...diskUserRoutes,
  ...shareRoutes,
  ...execRoutes,
  ...grepRoutes,
  ...sandboxRoutes,
  ...sandboxLifecycleRoutes,
  ...sandboxExecRoutes,
  ...sandboxConnectionRoutes,
  ...sandboxFileRoutes,
  ...sandboxNetworkRoutes,
  ...sandboxPortRoutes,
  ...snapshotRoutes,
  ...apiKeyRoutes,
  ...activityRoutes,
  ...usageRoutes,
  ...webhookRoutes,
  ...imageRoutes,
  ...hostRoutes,
];
