/* The loop devices of disks (loop(4)). All functions end the program when they fail. */
#pragma once

/* Locks the open image, waiting at most that long for whoever has it attached. */
void lock_image(int image, const char *path, int wait_ms);

/*
 * Attaches the open image to a new loop device, which therefore nobody else uses, numbered from
 * `first` on, with these LO_FLAGS_* besides. The device keeps the open file of the image, and with
 * it the lock.
 * Returns the open device; the kernel removes it when the last user closes it.
 */
int attach_loop(int image, const char *path, int first, unsigned flags, int *number);

/* The number of a loop device other than `own` that has the image as its file, or -1. */
int other_loop_on(int image, const char *path, int own);

/* The number of the host's own loop device, numbered from `first` on, that has the image, or -1. */
int loop_of_host_on(int image, const char *path, int first);

/* Removes the devices numbered from `first` on that nothing is attached to. */
void sweep_loops(int first);
