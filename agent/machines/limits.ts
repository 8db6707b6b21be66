import { MiB } from '../../shared/units.ts';

/** Limits of machines. */
export const MACHINE_LIMITS = {
  // A client that its server has not heard of for so long loses its locks.
  nfsLeaseSeconds: 60,
  // Memory of one NFS server, with what it has cached of the disks.
  nfsServerBytesMax: 512 * MiB,
  nfsServerThreadsMax: 512,
  // How often an agent looks whether the NFS server of a running machine is there.
  nfsServerLookMs: 2_000,
  // How long a guest tries to mount a disk.
  guestMountMsMax: 60_000,
  // Threads count. Of containers; a virtual machine has its own bound.
  processesPerSandboxMax: 2048,
  // The kernel has one number of terminals for all containers together (kernel.pty.max).
  terminalsPerContainerMax: 128,

  // How long a pause or a fork may take: a base, and a time per MiB of memory that any usable disk
  // stays below.
  sandboxCopyMsBase: 60_000,
  sandboxCopyMsPerMib: 50,
} as const;
