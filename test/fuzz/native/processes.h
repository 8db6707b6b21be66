/* Children that exist only in this process; see kernel.h. */
#pragma once
#include <stdbool.h>
#include <sys/types.h>

void begin_processes(void);
/* A new child, or -1. */
pid_t new_child(void);
bool is_living_child(pid_t pid);
