/* What the parts of the guard share; see guard.c. */
#pragma once
#include <stdbool.h>

enum { MOUNTS_MAX = 8192, PATH_BYTES = 4096 };

/* Makes this process a member of the control group with this cgroup.procs. */
bool join_group(const char *group);

/* Kills what is in the group beside this process; false when nothing is. */
bool kill_helpers(const char *group);

/* Unmounts in a process of its own, unless one is at it already. */
void begin_unmounting(const char *path);

/* Forgets those that have ended. */
void reap_unmounters(void);
