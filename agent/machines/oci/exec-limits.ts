/** The host resources that one command may use. */
export interface ExecLimits {
  readonly memoryBytes: number;
  readonly processes: number;
  readonly cpus: number;
  /** Bytes written outside the disks; they are held in memory and count as memory. */
  readonly scratchBytes: number;
}
