#ifndef SPAWNER_H
#define SPAWNER_H

#include <stdint.h>
#include <sys/types.h>

enum { SPAWN_DESCRIPTORS_MAX = 64, SPAWN_NOTHING = -1 };

/* A program to start: its descriptors from 0 on, /dev/null for SPAWN_NOTHING. */
struct spawn {
  char *path;
  char *const *args, *const *environment;
  int descriptors[SPAWN_DESCRIPTORS_MAX];
  uint32_t descriptor_count;
};

/* Starts a program in a session of its own. Gives an errno, or 0 and its process id. */
int spawn_program(const struct spawn *spawn, pid_t *pid);

#endif
