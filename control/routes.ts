import { activityRoutes } from './handlers/activity.ts';
import { apiKeyRoutes } from './handlers/api-keys.ts';
import { diskMountRoutes } from './handlers/disk-mounts.ts';
import { diskUserRoutes } from './handlers/disk-users.ts';
import { diskRoutes } from './handlers/disks.ts';
import { execRoutes } from './handlers/execs.ts';
import { grepRoutes } from './handlers/greps.ts';
import { hostRoutes } from './handlers/hosts.ts';
import { imageRoutes } from './handlers/images.ts';
import { sandboxConnectionRoutes } from './handlers/sandbox-connections.ts';
import { sandboxExecRoutes } from './handlers/sandbox-execs.ts';
import { sandboxFileRoutes } from './handlers/sandbox-files.ts';
import { sandboxLifecycleRoutes } from './handlers/sandbox-lifecycle.ts';
import { sandboxPortRoutes } from './handlers/sandbox-ports.ts';
import { sandboxNetworkRoutes } from './handlers/sandbox-network.ts';
import { sandboxRoutes } from './handlers/sandboxes.ts';
import { snapshotRoutes } from './handlers/snapshots.ts';
import { shareRoutes } from './handlers/shares.ts';
import { usageRoutes } from './handlers/usage.ts';
import { webhookRoutes } from './handlers/webhooks.ts';
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
