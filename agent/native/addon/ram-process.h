/* The RAM of a virtual machine as its process maps it. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ram-file.h"

/* A private mapping of a whole file; anonymous memory may take the place of the file's holes. */
struct ram {
  pid_t pid;
  int process; /* A descriptor of /proc/PID. */
  uint64_t base, bytes;
  dev_t device;
  ino_t inode;
};

/* A walk over the pages that the process has written to. */
struct changes {
  const struct ram *ram;
  int pagemap;
  uint64_t next; /* The first page not looked at. */
  uint64_t *entries;
  uint64_t entries_first, entries_count;
};

/* All functions that return an int return 0 or an error number. */
int ram_open(struct ram *ram, pid_t pid, dev_t device, ino_t inode, uint64_t bytes);
/* ESRCH when the process has ended: what was read may then be another one's. */
int ram_close(struct ram *ram);
int changes_open(struct changes *changes, const struct ram *ram);
/* Finds the next extent of changed pages; its count is 0 when there is none. */
int changes_next(struct changes *changes, uint32_t count_max, struct extent *found);
void changes_close(struct changes *changes);
/* Copies these pages out of the process, or into it. */
int ram_read(const struct ram *ram, const struct extent *extents, size_t count, uint8_t *into);
int ram_write(const struct ram *ram, const struct extent *extents, size_t count, uint8_t *from);
