import { join } from 'node:path';

/** Where the agent keeps what; every mount and every container of this host lies below `dataDir`. */
export const paths = {
  hostId: (dataDir: string) => join(dataDir, 'host-id'),
  lock: (dataDir: string) => join(dataDir, 'agent.lock'),
  journal: (dataDir: string) => join(dataDir, 'journal.sqlite'),
  runcRoot: (dataDir: string) => join(dataDir, 'runc'),
  /** Scratch and bundle of each running container. */
  containers: (dataDir: string) => join(dataDir, 'containers'),
  /** Long output of commands that run: files without a name. */
  outputTails: (dataDir: string) => join(dataDir, 'output-tails'),
  container: (dataDir: string, id: string) => join(dataDir, 'containers', id),
  /** Disks in use, each mounted under its id. */
  mounts: (dataDir: string) => join(dataDir, 'mounts'),
  mount: (dataDir: string, diskId: string) => join(dataDir, 'mounts', diskId),
  /** One directory for each sandbox of this host. */
  sandboxes: (dataDir: string) => join(dataDir, 'sandboxes'),
  templates: (dataDir: string) => join(dataDir, 'templates'),
  /** What commands in sandboxes put out. */
  sandboxOutput: (dataDir: string, sandboxId: string) => join(dataDir, 'output', sandboxId),
} as const;
