/** How processes in an image start unless their sandbox or request says otherwise. */
export interface ImageConfig {
  /** ENV. */
  readonly env: Readonly<Record<string, string>>;
  /** WORKDIR: an absolute path; `/` when the image names none. It may not exist in the image. */
  readonly workingDir: string;
  /**
   * USER as the image spells it: `user`, `uid`, `user:group` or `uid:gid`; empty: root. Names are
   * those of the image's own `/etc/passwd` and `/etc/group`.
   */
  readonly user: string;
}

export type ImagePlatform = 'amd64' | 'arm64';

/** An image that this host has unpacked. */
export interface BuiltImage {
  /**
   * `sha256:` and 64 hexadecimal digits, as `skopeo inspect` reports it: of the manifest that the
   * reference names or, for an image of several platforms, of its index. The same on all hosts.
   */
  readonly digest: string;
  readonly platform: ImagePlatform;
  readonly config: ImageConfig;
  /** An ext4 file of the default root disk's virtual size: the read-only base of VMs' layers. */
  readonly rootDisk: string;
  /** A read-only directory for containers; there while a hold that asked for the tree lasts. */
  readonly tree: string;
}

/** An image that stays on this host until it is released. */
export interface HeldImage {
  readonly image: BuiltImage;
  /** Idempotent. */
  release(): void;
}
