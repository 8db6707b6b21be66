/* How the program that attaches disks ends. */
#pragma once

/* The exit codes, which the agent reads (agent/disks/mount.ts). */
enum {
  ENDED_WELL = 0,
  FAILED = 1,
  NO_IMAGE = 3,
  IN_USE = 4,
  ATTACHED_ELSEWHERE = 5,
  STORAGE_FAILED = 6,
  NO_LOOP = 7
};

/* Prints `what` and the error, and ends with the code. */
_Noreturn void fail(int code, const char *what, int error);

/*
 * The same for a call on the storage, whatever it answers: it has more errors than EIO. A host that
 * was shut out of CephFS gets ESHUTDOWN, one whose client of FUSE has ended ENOTCONN.
 */
_Noreturn void fail_on_storage(const char *what, int error);
