/*
 * A hook: the one command that runs in a frozen guest, before a copy of its memory continues. It
 * has a control group of its own, because that of all other processes stands still.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Answers the request once the command has ended or is killed, with all that it started. */
void run_hook(const char *command, size_t length, uint32_t timeout_ms, uint32_t request);
/* Kills a hook that runs; nobody is answered. */
void end_hook(void);
/* True when the child was the hook's shell. */
bool hook_reaped(pid_t pid, int status);
/* Does what is due by now; returns when to be called again. */
uint64_t hook_tick(void);
