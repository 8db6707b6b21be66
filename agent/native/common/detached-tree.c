#define _GNU_SOURCE
#include "detached-tree.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

int clone_tree(int directory, const char *path, uint64_t attributes, int user_namespace) {
  struct mount_attr changes = {.attr_set = attributes, .propagation = MS_PRIVATE};
  if (user_namespace >= 0) {
    changes.attr_set |= MOUNT_ATTR_IDMAP;
    changes.userns_fd = (uint64_t)user_namespace;
  }
  int tree = open_tree(directory, path, AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
  if (tree < 0) return -1;
  if (mount_setattr(tree, "", AT_EMPTY_PATH, &changes, sizeof changes) == 0) return tree;
  int error = errno;
  close(tree);
  errno = error;
  return -1;
}
