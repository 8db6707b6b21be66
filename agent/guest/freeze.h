/*
 * A frozen guest runs nothing but us, and its disks have all that was written. So the host can take
 * a snapshot, and give a copy of it another time, entropy and identity before anything goes on.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* The control group (version 2) of the processes; without one they are stopped by signals. */
int use_group(const char *directory);
/* Both answer their request when it is done or has failed; a failed freeze has been undone. */
void freeze(uint32_t timeout_ms, uint32_t request);
void thaw(uint32_t request);
/* The same without an answer; 0 or an error number. */
int end_freeze(void);
/* Nobody waits for the answer any more. */
void freeze_forget_host(void);
bool is_frozen(void);
/* True when the child was ours: what writes to the disks. */
bool freeze_reaped(pid_t pid, int status);
uint64_t freeze_tick(void);
