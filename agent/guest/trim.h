/*
 * Trims the root disk, so that the host gets back what files that were deleted have left. The disk
 * is mounted with discard, which gives back most of it as it goes; the rest is what was freed just
 * now, and pieces that are whole only together.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Notes how much of each block group is free. Groups that never change are not trimmed. */
void remember_groups(const char *device);
/*
 * Trims the block groups that have changed, for so long at most; what is left is for the next time.
 * Answers the request when that is over.
 */
void trim_root(uint32_t budget_ms, uint32_t request);
/* True when the child was the one that trims. */
bool trim_reaped(pid_t pid, int status);
/* A new host has connected: nobody waits for the answer. */
void trim_forget_host(void);
uint64_t trim_tick(void);
