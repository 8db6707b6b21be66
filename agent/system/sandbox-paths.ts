import { join } from 'node:path';
import { paths } from './paths.ts';

/** Where the sandboxes of a host lie, and what their memory stands on. */
export interface SandboxPaths {
  /** A directory for each machine of this host. */
  readonly sandboxes: string;
  readonly templates: string;
  /** The secret from which the keys of NFS handles are derived; sealed. */
  readonly handleSecret: string;
}

/** In the host's data directory: its sandboxes stay there for good. */
export const ownPaths = (dataDir: string): SandboxPaths => ({
  sandboxes: paths.sandboxes(dataDir),
  templates: paths.templates(dataDir),
  handleSecret: paths.handleSecret(dataDir),
});

/** On storage that hosts share (`SANDBOX_DIR`), between which sandboxes move (decision 0084). */
export interface SharedPaths extends SandboxPaths {
  readonly directory: string;
  /** Directories of every host that has sandboxes here: `hosts/<host>/<VM id>`. */
  readonly hosts: string;
  /** Machines that no host has: whoever renames one into its own directory has it. */
  readonly released: string;
  /** Images below the layers of root disks. */
  readonly bases: string;
  /** A file of each host that its agent writes to and holds locked. */
  readonly alive: string;
}

export const sharedPaths = (directory: string, hostId: string): SharedPaths => ({
  directory,
  hosts: join(directory, 'hosts'),
  sandboxes: join(directory, 'hosts', hostId),
  released: join(directory, 'released'),
  templates: join(directory, 'templates'),
  bases: join(directory, 'bases'),
  alive: join(directory, 'alive'),
  handleSecret: join(directory, 'handle-secret'),
});
