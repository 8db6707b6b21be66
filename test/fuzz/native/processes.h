/* Children that exist only in this process; see kernel.h. */
#ifndef BERTH_FUZZ_PROCESSES_H
#define BERTH_FUZZ_PROCESSES_H

#include <stdbool.h>
#include <sys/types.h>

void begin_processes(void);
/* A new child, or -1. */
pid_t new_child(void);
bool is_living_child(pid_t pid);

#endif
