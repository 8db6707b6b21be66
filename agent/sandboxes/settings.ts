/** How this host runs sandboxes. */
export interface SandboxSettings {
  /** Kernel and initramfs of the guests, as scripts/build-guest makes them. */
  readonly guestDir: string;
  /** The file system that root disks begin with, as scripts/build-image makes it. */
  readonly rootDisk: string;
  readonly accelerator: 'auto' | 'kvm' | 'tcg';
  /** The first of the users that machines run as; as many as there are sandboxes. */
  readonly uidBase: number;
  readonly bootTimeoutMs: number;
  /** Machines begin with the memory of one that has booted, instead of booting each. */
  readonly hasTemplates: boolean;
  /** What all that run may take together. */
  readonly memoryMib: number;
  readonly vcpus: number;
  /** Memory of the host that stays available, whatever was promised. */
  readonly memoryReserveMib: number;
  /** Network slots: as many machines can run at once. */
  readonly slotsMax: number;
  /** Of them, kept ready. */
  readonly slotsReady: number;
  /** How many prewarmed VMs are kept at most. */
  readonly prewarmedMax: number;
}
