/* The end: asked for by the host, or from inside by a signal to PID 1. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* In tests we exit instead of switching the machine off. */
void keep_power(void);
/* SIGTERM to all, SIGKILL after the grace time, disks synced, power off. */
void begin_shutdown(uint32_t grace_ms, bool is_requested);
bool is_shutting_down(void);
/* No child is left. */
void shutdown_noticed_empty(void);
uint64_t shutdown_tick(void);
