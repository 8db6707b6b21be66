/** What one command may use of the host. */
export interface ExecLimits {
  readonly memoryBytes: number;
  readonly processes: number;
  readonly cpus: number;
  /** Everything written outside the disk; lives in memory and counts as such. */
  readonly scratchBytes: number;
}
