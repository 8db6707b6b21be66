/** Settings of a host that runs sandboxes (docs/operations.md, Agent). */
export interface SandboxSettings {
  /** Directory with the guests' kernel and initramfs, built by scripts/build-guest. */
  readonly guestDir: string;
  /** The default image as a disk, which root disks start from; built by scripts/build-image. */
  readonly rootDisk: string;
  readonly accelerator: 'auto' | 'kvm' | 'tcg';
  /** The first uid for machines; each sandbox takes one. */
  readonly uidBase: number;
  readonly bootTimeoutMs: number;
  /** Whether new machines start from a template instead of booting. */
  readonly hasTemplates: boolean;
  /** Capacity for all running sandboxes together. */
  readonly memoryMib: number;
  readonly vcpus: number;
  /** Memory that must stay available on the host; below it no sandbox is started. */
  readonly memoryReserveMib: number;
  /** Network slots, which bound how many machines can run at once. */
  readonly slotsMax: number;
  /** How many slots are kept ready. */
  readonly slotsReady: number;
  /** How many prewarmed VMs are kept at most. */
  readonly prewarmedMax: number;
}
