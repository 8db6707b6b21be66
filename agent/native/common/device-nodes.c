#define _GNU_SOURCE
#include "device-nodes.h"

#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static const struct node {
  const char *name;
  unsigned major, minor;
} nodes[] = {
    {"null", 1, 3},   {"zero", 1, 5},    {"full", 1, 7},
    {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
};

static const char *const links[][2] = {
    {"fd", "/proc/self/fd"},       {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"},
    {"stderr", "/proc/self/fd/2"}, {"ptmx", "pts/ptmx"},
};

static const char *const mount_points[] = {"pts", "shm"};

static int own(int directory, const char *name, uint32_t owner) {
  return fchownat(directory, name, owner, owner, AT_SYMLINK_NOFOLLOW);
}

int fill_devices(int directory, uint32_t owner) {
  for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
    const struct node *node = &nodes[i];
    if (mknodat(directory, node->name, S_IFCHR, makedev(node->major, node->minor)) != 0) return -1;
    /* mknodat(2) applied the umask. */
    if (fchmodat(directory, node->name, 0666, 0) != 0) return -1;
    if (own(directory, node->name, owner) != 0) return -1;
  }
  for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
    if (symlinkat(links[i][1], directory, links[i][0]) != 0) return -1;
    if (own(directory, links[i][0], owner) != 0) return -1;
  }
  for (size_t i = 0; i < sizeof mount_points / sizeof *mount_points; i++) {
    if (mkdirat(directory, mount_points[i], 0755) != 0) return -1;
    if (own(directory, mount_points[i], owner) != 0) return -1;
  }
  return fchown(directory, owner, owner);
}
