#define _GNU_SOURCE
#include "beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OPEN_TRIES_MAX = 8 };

int open_beneath(const char *directory, const char *path, int flags) {
  int root = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root < 0 || path[0] == '\0') return root;
  struct open_how how = {
      .flags = (uint64_t)(O_PATH | O_CLOEXEC | flags),
      .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
  };
  int found = -1;
  /* EAGAIN: a rename elsewhere kept the kernel from proving that `..` stayed beneath. */
  for (int tries = 0; tries < OPEN_TRIES_MAX; tries++) {
    found = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
    if (found >= 0 || errno != EAGAIN) break;
  }
  int error = errno;
  close(root);
  errno = error;
  return found;
}
