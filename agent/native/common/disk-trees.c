#define _GNU_SOURCE
#include "disk-trees.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "beneath.h"
#include "detached-tree.h"
#include "disk-failure.h"

static int make_tree(const struct disk_mount *mount, const char *access, int user_namespace) {
  uint64_t attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
  if (strcmp(access, "ro") == 0)
    attributes |= MOUNT_ATTR_RDONLY;
  else if (strcmp(access, "rw") != 0)
    fail(FAILED, access, EINVAL);
  int found = open_beneath(mount->contents, mount->subdirectory, O_DIRECTORY);
  if (found < 0) fail(FAILED, mount->target, errno);
  int tree = clone_tree(found, "", attributes, user_namespace);
  if (tree < 0) fail(FAILED, mount->target, errno);
  close(found);
  return tree;
}

int make_disk_trees(int count, char **arguments, int user_namespace, struct disk_mount *mounts) {
  int made = count / DISK_MOUNT_ARGUMENTS;
  if (count % DISK_MOUNT_ARGUMENTS != 0 || made > DISK_MOUNTS_MAX) fail(FAILED, "mounts", EINVAL);
  for (int index = 0; index < made; index++) {
    char **of = &arguments[(size_t)index * DISK_MOUNT_ARGUMENTS];
    mounts[index] = (struct disk_mount){.contents = of[0], .subdirectory = of[1], .target = of[2]};
    mounts[index].tree = make_tree(&mounts[index], of[3], user_namespace);
  }
  return made;
}
