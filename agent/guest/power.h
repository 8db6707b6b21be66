/* Shutting down: at the request of the host, or from inside by a signal to PID 1. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* In a container, and for tests: exits instead of powering off. */
void keep_power(void);
/* SIGTERM to all, SIGKILL after the grace time, disks synced, power off. */
void begin_shutdown(uint32_t grace_ms, bool is_requested);
bool is_shutting_down(void);
/* waitpid(2) found no child left. */
void shutdown_noticed_empty(void);
uint64_t shutdown_tick(void);
