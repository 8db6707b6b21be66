/*
 * Work of every shim besides starting its machine: it reports how the start went, listens at
 * sockets, and records which processes the machine is and how it ended. The files lie in the
 * working directory, the machine's run directory (agent/machines/shim/shim-files.ts reads them).
 */
#pragma once

#include <sys/types.h>

/* The shim's own descriptors start at FD_OWN_MIN, clear of those that a machine's process gets. */
enum { FD_REPORT = 3, FD_OWN_MIN = 100, GROUPS_MAX = 16 };

/* Takes descriptor FD_REPORT, a pipe on which the agent reads `ok`, or why nothing was started. */
void open_report(void);
void report_started(void);
/* Reports the step that failed and ends the shim. */
_Noreturn void fail_start(const char *step, int error);
_Noreturn void fail_start_because(const char *reason);
/* A number from 0 to `max`; ends the shim for any other text. */
long read_number(const char *text, long max);

/* Moves a descriptor above those that are given away; it closes on exec. */
int own(int fd);
void own_pipe(int ends[2]);
/* A socket that only root can connect to, under a name in the run directory. */
int listen_at(const char *name);

/* Joins control groups by their cgroup.procs. 0, or -1 and errno. */
int join_groups(const char *const *files);
/* Processes that the kernel killed for want of memory, as the group's counter file has it. */
unsigned long long oom_kills(const char *path);
/* Records which processes the machine and its shim are (machine.json). */
void write_identity(pid_t machine);
/* Waits for the machine's end and records how it ended (exit.json). */
void record_end(pid_t machine, const char *oom_counter, unsigned long long kills_before);
