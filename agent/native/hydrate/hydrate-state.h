/*
 * State that the processes of `hydrate` share: this memory, and one table of descriptors
 * (hydrate.c).
 */
#pragma once
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { NONE = -1, PROCESSES = 3, CHECK_MS = 200, DESCRIPTORS_MAX = 1 << 16 };

struct state {
  char root[PATH_MAX]; /* Where the host has the file system mounted. */
  dev_t device;
  int group, listener;
  int mounted; /* Can be read for as long as the file system is mounted somewhere. */
  /* Work of the process whose turn it is. */
  void (*work)(int slot);
  _Atomic uint64_t turn;            /* Whose: GENERATION << 8 | SLOT. */
  _Atomic int processes[PROCESSES]; /* Their pidfds; NONE for one that is about to be started. */
  _Atomic uint32_t last_serial;
  _Atomic pid_t openers[DESCRIPTORS_MAX]; /* The process that waits for the open. */
  _Atomic bool is_over;                   /* The file system is unmounted. */
};

extern struct state *state;
