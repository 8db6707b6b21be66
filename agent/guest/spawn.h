/* The way from a specification to a shell that was executed. */
#ifndef BERTH_GUEST_SPAWN_H
#define BERTH_GUEST_SPAWN_H

#include <stdint.h>
#include <sys/types.h>

#include "process.h"

/* What is written to the failure pipe when the shell could not be executed. */
struct spawn_failure {
  int error;
  char step[16];
};

struct spawned {
  pid_t pid;
  int input;      /* -1 when stdin is empty. */
  int outputs[2]; /* The second is -1 for a terminal. */
  int failure;
};

/* Environment of every process, and where it starts unless it says otherwise. */
int set_process_defaults(const char *environment, size_t length, const char *directory);
/* The control group that processes belong to; none when NULL. */
void set_process_group(const char *directory);
/* Commands get the limits that we were started with. */
void remember_limits(void);

/* 0, or an error number. The descriptors are ours to close. */
int spawn(const struct process_spec *spec, struct spawned *spawned);
int set_terminal_size(int terminal, uint16_t columns, uint16_t rows);

#endif
