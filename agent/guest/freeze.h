/*
 * In a frozen guest only the guest agent runs, and everything written is on the disks. The host can
 * then take a snapshot, and give a copy of it another time, entropy and identity before it resumes.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Names the control group (version 2) of processes; without one, freezing uses signals. */
int use_group(const char *directory);
/* Empty without one. */
const char *process_group(void);
/* Both answer the request once it is done or has failed. A freeze that fails is undone. */
void freeze(uint32_t timeout_ms, uint32_t request);
void thaw(uint32_t request);
/* Thaws without an answer. 0, or an error number. */
int end_freeze(void);
/* A new host has connected: nobody waits for the answer. */
void freeze_forget_host(void);
bool is_frozen(void);
/* True when the child was the one that syncs the disks. */
bool freeze_reaped(pid_t pid, int status);
uint64_t freeze_tick(void);
