/* Confining the process of a machine before it becomes QEMU. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "../common/shim-files.h"

enum { PASSED_MAX = 8 };

/* Descriptors of QEMU; qemu-arguments.ts repeats them. */
enum { FD_MONITOR = 3, FD_GUEST = 4, FD_TAP = 5, FD_LOCK = 6, FD_PASSED = 10 };

struct options {
  const char *run;   /* Sockets, log, and what is recorded of the machine. */
  const char *disks; /* The only directory in which QEMU may write, and only to its own files. */
  const char *base;
  const char *guest;
  const char *preload; /* A library that is loaded into QEMU first; NULL: none. */
  const char *network; /* A network namespace; NULL: an empty one. */
  const char *tap;
  const char *oom_counter;
  const char *keeper_groups[GROUPS_MAX + 1];
  const char *machine_groups[GROUPS_MAX + 1];
  long uid;
  long file_bytes_max;
  long passed; /* How many descriptors from FD_PASSED on are for QEMU. */
  bool with_kvm;
  char **program;
};

/* Descriptors that the machine's process inherits; all close on exec. */
struct handles {
  int monitor, guest, output, failure, go, lock;
};

struct failure {
  int error;
  char step[60];
};

/* Becomes QEMU in namespaces of its own. Returns only on failure. */
struct failure become_machine(const struct options *options, const struct handles *handles);
