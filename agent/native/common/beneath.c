#define _GNU_SOURCE
#include "beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OPEN_TRIES_MAX = 8 };

static int open_directory(const char *path) { return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC); }

/* Closes `fd` and leaves errno as it is. */
static void close_quietly(int fd) {
  int error = errno;
  close(fd);
  errno = error;
}

/* Takes the descriptor of the root over. */
static int open_in(int root, const char *path, int flags) {
  if (path[0] == '\0') return root;
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
  close_quietly(root);
  return found;
}

int open_beneath(const char *directory, const char *path, int flags) {
  int root = open_directory(directory);
  return root < 0 ? root : open_in(root, path, flags);
}

/* 0, or why the file must not be opened with these flags. */
static int refusal_of(const struct stat *found, int flags) {
  if (S_ISDIR(found->st_mode)) return (flags & O_DIRECTORY) == 0 ? EISDIR : 0;
  return S_ISREG(found->st_mode) ? 0 : ENXIO;
}

int open_file_beneath(const char *directory, const char *path, int flags, struct stat *found) {
  char link[64];
  int fd = -1, root = open_directory(directory), name;
  if (root < 0) {
    errno = EIO;
    return -1;
  }
  name = open_in(root, path, flags & (O_DIRECTORY | O_NOFOLLOW));
  if (name < 0 || (flags & O_PATH) != 0) return name;
  snprintf(link, sizeof link, "/proc/self/fd/%d", name);
  if (fstat(name, found) == 0 && (errno = refusal_of(found, flags)) == 0)
    fd = open(link, (flags & ~O_NOFOLLOW) | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  close_quietly(name);
  return fd;
}
