/* What the parts of the program that attaches disks share; see disk.c. */
#pragma once
#include <stdbool.h>
#include <sys/types.h>

/* How it ends; the agent reads the number (agent/disks/disk-mount.ts). */
enum { ENDED_WELL = 0, FAILED = 1, NO_IMAGE = 3, IN_USE = 4, ATTACHED_ELSEWHERE = 5 };

enum { PATH_BYTES = 4096, LOOP_NUMBERS = 1024 };

_Noreturn void fail(int code, const char *what, int error);

/*
 * Attaches the open image to a loop device that did not exist before, and so is nobody else's, with
 * a number from `first` on. The device keeps the image's open file, and with it the lock.
 * @return the device, open; it is gone when the last who has it open is
 */
int attach_loop(int image, const char *path, int first, int *number);

/* The number of a loop device other than `own` that has the image as its file, or -1. */
int other_loop_on(int image, const char *path, int own);

/* Removes the devices with a number from `first` on that nothing is attached to. */
void sweep_loops(int first);
