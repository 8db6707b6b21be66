#define _GNU_SOURCE
#include "lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_at(int fd, const char *path) {
  struct stat held, found;
  if (fstat(fd, &held) != 0) return false;
  if (stat(path, &found) != 0) return false;
  errno = ESTALE;
  return held.st_dev == found.st_dev && held.st_ino == found.st_ino;
}

int take_lock(const char *path) {
  int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return -1;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 && is_at(fd, path)) return fd;
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}
