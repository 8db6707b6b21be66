import type { Directory } from '../../shared/directory/directory.ts';
import type { AgentHub } from '../dispatch/agent-hub.ts';
import type { ControlConfig } from '../config.ts';
import type { DirectoryRoom } from '../dispatch/directory-room.ts';
import type { DataProxy } from '../dispatch/data-proxy.ts';
import type { JobDispatch } from '../dispatch/job-dispatch.ts';

/** What handlers and services work with; made once in main.ts. */
export interface Deps {
  readonly config: ControlConfig;
  readonly directory: Directory;
  readonly room: DirectoryRoom;
  readonly hub: AgentHub;
  readonly jobs: JobDispatch;
  readonly data: DataProxy;
}
