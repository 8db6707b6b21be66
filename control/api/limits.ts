import assert from 'node:assert';
import { SCHEMA_LIMITS } from '../../shared/schemas/limits.ts';
import { KiB } from '../../shared/units.ts';

/** Limits of resources. */
export const API_LIMITS = {
  checkoutsPerExecMax: 128, // Each keeps a file open on the host.

  // A stop or a snapshot is nearly always over by then; clients would look again only after 500 ms.
  sandboxBriefWaitMs: 300,
  // How long the name and the capacity of a new sandbox stay reserved until its owner journals it.
  sandboxClaimMs: 30_000,
  // A job that its host has not begun within this time is dropped.
  sandboxBeginMs: 8_000,
  // How many hosts are asked, one after the other, to make a new disk.
  diskPlacementsMax: 3,
  // How many hosts are asked, one after the other, to take a new sandbox.
  sandboxPlacementsMax: 3,

  // Ports that the answer to the deletion of a key names.
  endedPortsShownMax: 1000,

  // For this long the answer to an order waits until the host follows it.
  hostOrderWaitMsMax: 5_000,
  joinBodyBytesMax: 1 * KiB, // Anyone may send it: no key is asked for.
} as const;

// A caller who gives up after 30 s still gets the answer, and a claim outlasts the job it is for.
assert(API_LIMITS.sandboxBeginMs + SCHEMA_LIMITS.sandboxWaitMsMax < 30_000);
assert(API_LIMITS.sandboxBeginMs * 2 < API_LIMITS.sandboxClaimMs);
