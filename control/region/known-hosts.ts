import type { HostLoad } from '../../shared/links/stream-protocol.ts';
import type { SandboxImage } from '../../shared/schemas/sandbox-image.ts';

/** A host whose agent is linked to this node. */
export interface Host {
  readonly hostId: string;
  readonly publicUrl: string;
  /** Where this node reaches the host's data endpoint. */
  readonly internalUrl: string;
  /** The image that its sandboxes begin with, if its image says so. */
  readonly image?: SandboxImage | undefined;
  readonly load: HostLoad;
  /** Jobs sent from here and not answered yet; more recent than what the host reported. */
  readonly jobsPending: number;
}

/** The hosts that a node knows. */
export interface KnownHosts {
  find(hostId: string): Host | undefined;
  /**
   * Each host once. Callers take as many as they need, so that nothing visits all hosts of a
   * region.
   */
  inRandomOrder(): IteratorObject<Host, undefined>;
}
