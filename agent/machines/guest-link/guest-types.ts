/** A piece of a process's output; the offset counts the bytes of both streams. */
export interface GuestOutput {
  processId: string;
  stream: 1 | 2;
  offset: number;
  bytes: Buffer;
}

export interface GuestExit {
  processId: string;
  /** Either the shell's exit code or the number of the signal that ended it is set. */
  exitCode: number | undefined;
  signal: number | undefined;
  /** Why it ended, when the host's side made it end. */
  cause: 'killed' | 'timed_out' | undefined;
  /** How many bytes of output there were; the last of them may arrive after the exit. */
  end: number;
  /**
   * By the host's clock, in milliseconds since the epoch. The guest reports it, so it may be false.
   */
  endedAt: number;
}

export interface GuestEvents {
  output: [output: GuestOutput];
  exited: [exit: GuestExit];
  /** The process has taken all input before the offset. */
  taken: [processId: string, offset: number];
  /** The guest has discarded what it kept of this ended process. */
  evicted: [processId: string];
  /** The guest shuts down, because the host asked it to or by itself. */
  poweringOff: [isRequested: boolean];
  /** Once, after everything else; with an error unless `close` was called. */
  closed: [error: Error | undefined];
}

export interface GuestSettings {
  hostname: string;
  machineId: string;
  bootId: string;
  network:
    | {
        /** Empty: the host sets the interface up, and the guest learns of its resolver only. */
        interface: string;
        address: string;
        prefixBits: number;
        gateway: string;
        resolver: string;
        mtuBytes: number;
      }
    | undefined;
  rootDisk: { device: string; type: string } | undefined;
  /** The working directory of processes that name none; made, if it is missing. */
  directory: string;
  /** The user of processes that name none, as an OCI image names it; empty: root. */
  user: string;
  environment: Readonly<Record<string, string>>;
}

/** How a hook ended. */
export interface GuestHookEnd {
  /** Either the shell's exit code or the number of the signal that ended it is set. */
  exitCode: number | undefined;
  signal: number | undefined;
  isTimedOut: boolean;
}

/** A disk that the host serves to the guest. */
export interface GuestDisk {
  /** The server's, IPv4. */
  address: string;
  /** The name under which the server exports the disk. */
  name: string;
  /** Where the guest mounts it; missing directories are made. */
  path: string;
  isReadOnly: boolean;
}

export interface GuestProcessSpec {
  id: string;
  command: string;
  environment: Readonly<Record<string, string>>;
  /** Empty: the working directory of the settings. */
  directory: string;
  /** A name or number, with or without `:group`. Empty: the user of the settings. */
  user: string;
  terminal: { columns: number; rows: number } | undefined;
  stdin: boolean;
  /** Follows its output from the first byte on, as `follow(id, 0)` would. */
  isFollowed: boolean;
  /** Kept for a while after its end, then evicted; others are kept until `forget`. */
  isAttachable: boolean;
  /** After this time the guest kills it. The clock stands still while the machine is paused. */
  timeoutMs: number | undefined;
}
