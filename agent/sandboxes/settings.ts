import type { NetworkSettings } from '../network/router.ts';

/** Settings of virtual machines. */
export interface MicrovmSettings {
  readonly kind: 'microvm';
  /** Directory with the guests' kernel and initramfs, built by scripts/build-guest. */
  readonly guestDir: string;
  /** The default image as a disk, which root disks start from; built by scripts/build-image. */
  readonly rootDisk: string;
  readonly accelerator: 'auto' | 'kvm' | 'tcg';
  /** Whether new machines start from a template instead of booting. */
  readonly hasTemplates: boolean;
}

/** Settings of containers. */
export interface ContainerSettings {
  readonly kind: 'container';
  /** The tree that disks begin with, built by scripts/build-image. */
  readonly imageDir: string;
  /** The most that a sandbox may write. */
  readonly diskBytes: number;
  /** The first id of the host for users inside sandboxes. */
  readonly idBase: number;
}

/** Storage on which hosts share their sandboxes. */
interface SharedStorageSettings {
  readonly directory: string;
  /** How long another host is silent before it is lost; 0: until an operator says so. */
  readonly hostLostMs: number;
  /** How long a copy of an image is kept that no machine's disk stands on. */
  readonly keepBasesMs: number;
}

/** Settings of a host that runs sandboxes (docs/operations.md, Agent). */
export interface SandboxSettings {
  readonly runtime: MicrovmSettings | ContainerSettings;
  /** Undefined: its sandboxes lie in its data directory and stay there. */
  readonly shared: SharedStorageSettings | undefined;
  /**
   * A file of certificates, as PEM, that servers are verified with when secrets are sent to them,
   * besides those of the system.
   */
  readonly trustedCertificates: string | undefined;
  /** The first uid for machines; each sandbox takes one. */
  readonly uidBase: number;
  readonly bootTimeoutMs: number;
  /** Capacity for all running sandboxes together. */
  readonly memoryMib: number;
  readonly vcpus: number;
  /** Memory that must stay available on the host; below it no sandbox is started. */
  readonly memoryReserveMib: number;
  /** Undefined: sandboxes reach nothing, and nothing reaches them. */
  readonly network: NetworkSettings | undefined;
  /** Network slots, which bound how many machines can run at once. */
  readonly slotsMax: number;
  /** How many slots are kept ready. */
  readonly slotsReady: number;
  /** How many prewarmed VMs are kept at most. */
  readonly prewarmedMax: number;
}
