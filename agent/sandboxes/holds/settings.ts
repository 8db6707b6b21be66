import type {
  ContainerSettings,
  MachineSettings,
  MicrovmSettings,
} from '../../machines/settings.ts';
import type { NetworkSettings } from '../../network/slots/router.ts';

/** Storage on which hosts share their sandboxes. */
interface SharedStorageSettings {
  readonly directory: string;
  /** How long another host is silent before it is lost; 0: until an operator says so. */
  readonly hostLostMs: number;
  /** How long a copy of an image is kept that no machine's disk stands on. */
  readonly keepBasesMs: number;
}

/** Settings of a host that runs sandboxes (docs/settings.md, Agent). */
export interface SandboxSettings extends MachineSettings {
  readonly runtime: MicrovmSettings | ContainerSettings;
  /** Undefined: its sandboxes lie in its data directory and stay there. */
  readonly shared: SharedStorageSettings | undefined;
  /**
   * A file of certificates, as PEM, that servers are verified with when secrets are sent to them,
   * besides those of the system.
   */
  readonly trustedCertificates: string | undefined;
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
