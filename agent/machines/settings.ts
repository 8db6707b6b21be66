/** Settings of machines of every kind. */
export interface MachineSettings {
  /** The first uid for machines; each sandbox takes one. */
  readonly uidBase: number;
  readonly bootTimeoutMs: number;
}

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
