/* How the program that attaches disks ends. */
#pragma once

/* The exit codes, which the agent reads (agent/disks/disk-mount.ts). */
enum {
  ENDED_WELL = 0,
  FAILED = 1,
  NO_IMAGE = 3,
  IN_USE = 4,
  ATTACHED_ELSEWHERE = 5,
  STORAGE_FAILED = 6
};

/* Prints `what` and the error, and ends with the code. */
_Noreturn void fail(int code, const char *what, int error);

/*
 * The same for a call on the storage or on a file system there. The code is STORAGE_FAILED for what
 * the kernel answers when the storage is gone, as for a host that was shut out of it.
 */
_Noreturn void fail_on_storage(const char *what, int error);
