/* Finding files by their paths, without being led anywhere by /proc. */
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "file-task.h"

/* A name in a directory, which need not exist. */
struct place {
  int directory; /* O_PATH. */
  char name[NAME_MAX + 1];
  bool exists;
  struct stat found; /* Attributes of a link itself, unless it was to be followed. */
};

/* openat2(2) that follows no magic link of /proc. A descriptor, or -1 and errno. */
int open_safely(int directory, const char *path, int flags, uint64_t more_resolve);
/* 0, or an error number. */
int find_place(const struct file_task *task, const char *path, bool follow, struct place *place);
/* The file system of this descriptor shows the kernel's own state, not files. */
bool is_kernel_file_system(int fd);
/* The file system of this descriptor is a disk of the host, mounted over NFS (mounts.h). */
bool is_disk_of_host(int fd);
/* Looks again what is there. 0, or an error number. */
int look_at_place(struct place *place);
/* Makes a directory with the owner that was asked for. 0, or an error number. */
int make_directory(const struct file_task *task, int parent, const char *name, mode_t mode);
