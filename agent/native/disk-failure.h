/* How the program that attaches disks ends. */
#pragma once

/* The exit codes, which the agent reads (agent/disks/disk-mount.ts). */
enum { ENDED_WELL = 0, FAILED = 1, NO_IMAGE = 3, IN_USE = 4, ATTACHED_ELSEWHERE = 5 };

/* Prints `what` and the error, and ends with the code. */
_Noreturn void fail(int code, const char *what, int error);
