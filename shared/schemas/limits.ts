import assert from 'node:assert';
import { HOUR_MS, KiB, MINUTE_MS, MiB } from '../units.ts';

/** Limits of inputs and answers. */
export const SCHEMA_LIMITS = {
  pageSizeDefault: 50,
  pageSizeMax: 100,

  // The longest life that a disk user or a port token may be given.
  credentialTtlMsMax: 8760 * HOUR_MS,
  usersPerDiskMax: 100,
  allowedIpsPerDiskMax: 200,
  allowedOriginsPerDiskMax: 50,

  // Exec
  commandBytesMax: 1 * MiB,
  disksPerExecMax: 32,
  mountPathBytesMax: 1024,
  mountsPerSandboxMax: 16,
  checkoutsPerMountMax: 32,
  execTimeoutMsMax: 290_000,
  // The end of a longer output is kept.
  outputBytesPerStreamMax: 16 * MiB,

  // Share links
  shareKeyBytesMax: 1024,
  shareTtlSecondsDefault: 24 * 3600,
  shareTtlSecondsMax: 7 * 24 * 3600,

  // Grep
  grepPatternBytesMax: 64 * KiB,
  grepResultsDefault: 1000,
  grepResultsMax: 10_000,
  grepConcurrencyDefault: 50,
  grepConcurrencyMax: 100,
  grepSecondsMax: 30,
  // Clients that give up after 30 s still get the answer.
  grepDurationMsMax: 28_000,
  // Longer lines are cut; the same as in search.h.
  grepTextBytesMax: 64 * KiB,

  // Sandboxes
  sandboxNameLengthMax: 63,
  sandboxVcpusMax: 32,
  sandboxMemMibMin: 256,
  sandboxMemMibMax: 65_536,
  sandboxMemMibDefault: 2048,
  sandboxTtlSecondsMin: 60,
  sandboxTtlSecondsMax: 86_400,
  sandboxConcurrentExecsDefault: 32,
  sandboxConcurrentExecsMax: 1024,
  imageReferenceLengthMax: 512,
  sandboxVariablesMax: 2048,
  sandboxEnvironmentBytesMax: 128 * KiB, // Names and values, and two bytes per variable.
  // How long `wait=true` holds an answer: clients give up after 30 s (docs/api.md, Choices).
  sandboxWaitMsMax: 20_000,
  sandboxExitMessageLengthMax: 1000,
  copyHookBytesMax: 8 * KiB,
  copyHookMsMax: 10_000,
  sandboxCheckpointLengthMax: 64,
  dependentForksListedMax: 10,
  sandboxExecTimeoutSecondsMax: 86_400,

  imageCredentialLengthMax: 8 * KiB,

  // Network policies
  networkTargetLengthMax: 255,
  networkRulesPerListMax: 256,
  networkDrainPatternsMax: 64,
  networkHeadersPerRuleMax: 16,
  networkHeaderNameLengthMax: 128,
  networkHeaderValueLengthMax: 8 * KiB,
  networkForwardUrlLengthMax: 2 * KiB,
  networkPolicyBytesMax: 128 * KiB, // Bytes of JSON, within a job and a row of the journal.

  // Files of sandboxes
  filePathBytesMax: 4095, // PATH_MAX of Linux without its NUL.
  fileListDefault: 1000,
  fileListMax: 5000,
  fileCursorLengthMax: 8 * KiB,

  // How long a process of a sandbox is kept after its end; the same as in wire.h.
  processKeptMs: 15 * MINUTE_MS,

  portsPerSandboxMax: 128, // Exposed ones.

  /** Sandboxes and disks that a host's report names by id; the counts are of all. */
  hostReportIdsMax: 10,
} as const;

assert(SCHEMA_LIMITS.grepDurationMsMax < SCHEMA_LIMITS.grepSecondsMax * 1000);
assert(SCHEMA_LIMITS.pageSizeDefault <= SCHEMA_LIMITS.pageSizeMax);
