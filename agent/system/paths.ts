import { join } from 'node:path';

/**
 * The layout of the agent's two directories. The data directory outlives boots. The run directory
 * (run-directory.ts) holds every mount of disk contents, so that nobody who empties the data
 * directory deletes files of a disk that is still mounted.
 */
export const paths = {
  hostId: (dataDir: string) => join(dataDir, 'host-id'),
  lock: (dataDir: string) => join(dataDir, 'agent.lock'),
  journal: (dataDir: string) => join(dataDir, 'journal.sqlite'),
  runcRoot: (dataDir: string) => join(dataDir, 'runc'),
  /** Scratch, bundle and disks of each running container. */
  containers: (runDir: string) => join(runDir, 'containers'),
  /** Unlinked files that hold the long output of running commands. */
  outputTails: (dataDir: string) => join(dataDir, 'output-tails'),
  container: (runDir: string, id: string) => join(runDir, 'containers', id),
  /** Attached disks, each mounted under its id. */
  mounts: (runDir: string) => join(runDir, 'mounts'),
  mount: (runDir: string, diskId: string) => join(runDir, 'mounts', diskId),
  /** Disks that sandboxes mount, each mounted once more under its id; this outlives the agent. */
  heldDisks: (runDir: string) => join(runDir, 'held'),
  heldDisk: (runDir: string, diskId: string) => join(runDir, 'held', diskId),
  /** A tmpfs with the NFS server and its libraries, and nothing else. */
  nfsPrograms: (dataDir: string) => join(dataDir, 'nfs-programs'),
  /** The secret from which the keys of NFS handles are derived; sealed. */
  handleSecret: (dataDir: string) => join(dataDir, 'handle-secret'),
  /** Sockets of helpers, and marks of disks with something to upload. */
  buckets: (dataDir: string) => join(dataDir, 'buckets'),
  /** A directory for each sandbox of this host. */
  sandboxes: (dataDir: string) => join(dataDir, 'sandboxes'),
  /** Which runtime the sandboxes are of. */
  sandboxRuntime: (dataDir: string) => join(dataDir, 'sandbox-runtime'),
  /** The id of the storage on which the region's disks are. */
  diskStorage: (dataDir: string) => join(dataDir, 'disk-storage'),
  /** On which storage the sandboxes are, where it is not this directory. */
  sandboxStorage: (dataDir: string) => join(dataDir, 'sandbox-storage'),
  /** The empty file system that the disks of container sandboxes begin with. */
  emptyDisk: (dataDir: string, sizeBytes: number) => join(dataDir, `empty-${sizeBytes}.ext4`),
  /** Unpacked images, made by builds. */
  images: (dataDir: string) => join(dataDir, 'images'),
  templates: (dataDir: string) => join(dataDir, 'templates'),
  /** The machine that becomes a template. */
  templateMaker: (dataDir: string) => join(dataDir, 'template-maker'),
  /**
   * The control socket of the egress proxy, its last words, and the key of sandboxes' authorities.
   */
  egressControl: (dataDir: string) => join(dataDir, 'egress.sock'),
  egressErrors: (dataDir: string) => join(dataDir, 'egress.err'),
  egressKey: (dataDir: string) => join(dataDir, 'egress-key'),
  /** Output of the commands in a sandbox. */
  sandboxOutput: (dataDir: string, sandboxId: string) => join(dataDir, 'output', sandboxId),
} as const;
