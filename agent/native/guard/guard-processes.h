/* The processes that the guard kills, and those that it starts to unmount. */
#pragma once
#include <stdbool.h>

enum { MOUNTS_MAX = 8192, PATH_BYTES = 4096 };

/* Makes this process a member of the control group with this cgroup.procs. */
bool join_group(const char *group);

/* Kills every other member of the group; false when there is none. */
bool kill_helpers(const char *group);

/* Starts a process that unmounts the path, unless one is doing so already. */
void begin_unmounting(const char *path);

/* Forgets the processes that have ended. */
void reap_unmounters(void);
