/* Starts the shell of a process as a specification says. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "wire.h"

struct process_spec {
  uint8_t id[ID_BYTES];
  /* Instead of a command: an operation on files (files.h), as the host sent it. */
  const uint8_t *operation;
  size_t operation_length;
  bool hook; /* Joins the hook's group, and nobody reads its output. */
  uint8_t flags;
  uint16_t columns, rows;
  uint64_t timeout_ms; /* 0: none. */
  const char *command; /* Texts end with NUL. */
  size_t command_length;
  const char *environment; /* NAME=value entries, each ended by NUL. */
  size_t environment_length;
  const char *directory; /* Empty for the default. */
  const char *user;      /* User as an OCI image names it (user.h); empty for the default. */
};

/* Written to the failure pipe when the shell could not be executed. */
struct spawn_failure {
  int error;
  char step[16];
};

struct spawned {
  pid_t pid;
  int input;      /* -1 when stdin is empty. */
  int outputs[2]; /* The second is -1 for a terminal, and for an operation on files. */
  int failure;
};

/* Defaults for processes that name no user, directory or variables. */
struct process_defaults {
  const char *environment; /* Also of those that name more variables. */
  size_t environment_length;
  const char *directory; /* Made, if it is missing. */
  const char *user;
};

int set_process_defaults(const struct process_defaults *defaults);
/* The control group that processes join. */
void set_process_group(const char *directory);
/* The one that a hook joins. */
void set_hook_group(const char *directory);
/* In a container: when memory runs out, processes are ended rather than the guest agent. */
void expose_processes(void);
/* Commands get the resource limits that the guest agent was started with. */
void remember_limits(void);

/* 0, or an error number. The caller closes the descriptors. */
int spawn(const struct process_spec *spec, struct spawned *spawned);
int set_terminal_size(int terminal, uint16_t columns, uint16_t rows);
