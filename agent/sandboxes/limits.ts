import { KiB, MINUTE_MS, MiB } from '../../shared/units.ts';

/** Limits of sandboxes. */
export const SANDBOX_LIMITS = {
  // Size of a snapshot with memory that machines are prewarmed from: prewarmed ones take no
  // capacity.
  snapshotPrewarmedBytesMax: 256 * MiB,
  sandboxStopGraceMs: 10_000,
  sandboxKillMsMax: 10_000,
  // How long all sandboxes together may take to pause when the host goes down.
  sandboxStopAllMs: 120_000,
  // A pause that a time limit asked for and that failed is tried again after this long.
  sandboxPauseRetryMs: 30_000,
  // How long an agent that shuts down waits for a pause or fork; the next agent recovers it.
  sandboxDetachMs: 5_000,
  // How long a host that goes down waits for a sandbox that it is just taking.
  sandboxTakenMsMax: 5_000,
  sandboxResumesAtOnceMax: 8,
  // How deep forks of forks may go: every generation adds a layer to the disk.
  sandboxForkDepthMax: 16,
  sandboxExecsListedMax: 100,
  sandboxCommandListedMax: 4 * KiB, // In characters.
  // How long a command waits for a guest that does not answer, as after a restart of its agent.
  sandboxExecGuestMsMax: 5_000,
  // Output bytes kept of a command, both streams together: the newest, up to twice as many.
  sandboxExecOutputBytes: 4 * MiB,

  sandboxImageWaitMsMax: 60 * MINUTE_MS, // For a turn to have its image built.

  networkDrainMsMax: 10 * MINUTE_MS, // How long a pause waits for requests that its policy names.

  // Process connections
  // How long a client's request waits for a guest that does not answer.
  guestAnswerMsMax: 30_000,
  // Input that waits for a process that does not read, from all of its clients together.
  inputWaitingBytesMax: 4 * MiB,
  // The same from clients that have left, for all processes of a sandbox together.
  inputLeftBytesMax: 16 * MiB,

  // Requests for files, and watches, of one sandbox at the same time.
  filesPerSandboxMax: 16,
  watchesPerSandboxMax: 16,
  // How long a guest may take to begin its answer, and then to go on with it.
  fileAnswerMsMax: 60_000,

  // How often a host looks whether sandboxes are to be released or taken over.
  sandboxMoveLookMs: 1_000,
  // How often a host looks for copies of images on shared storage that no machine needs.
  sandboxBasesLookMs: 60_000,
  // How often it looks for what removed hosts have left there.
  sandboxClearLookMs: 60_000,
  // How long a sandbox stays released before its host reclaims it, and until the next release.
  sandboxReleasedMs: 10_000,
  sandboxReleaseAgainMs: 60_000,
  sandboxReleaseAgainMsMax: 600_000,
} as const;
