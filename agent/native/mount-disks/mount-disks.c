/*
 * Mounts disks in a container that runs. The mounts exist in its mount namespace only, and end with
 * it.
 *
 * Usage: mount-disks PID OWNER [CONTENTS SUBDIRECTORY TARGET rw|ro]…
 *   PID is a process of the container, OWNER the host's id of its root. Missing directories of a
 *   target are made. A target that shows the same directory already is left alone, so this may be
 *   repeated.
 *
 * The container's tree belongs to its tenant: each target is resolved within the container's root,
 * whatever links lie on the way.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/securebits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../common/disk-failure.h"
#include "../common/disk-trees.h"

enum { PATH_BYTES = 4096, OPEN_TRIES_MAX = 8 };

static int open_namespace(const char *pid, const char *kind) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%s/ns/%s", pid, kind);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(FAILED, path, errno);
  return fd;
}

/* By the container's root as its own processes would, but through no magic link of /proc. */
static int open_directory(int root, const char *path) {
  struct open_how how = {
      .flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
      .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
  };
  int found = -1;
  for (int tries = 0; tries < OPEN_TRIES_MAX; tries++) {
    found = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
    if (found >= 0 || errno != EAGAIN) break;
  }
  return found;
}

/* The directory at the path, made with its parents where they are missing. */
static int provide_directory(int root, const char *path) {
  char prefix[PATH_BYTES];
  int parent = open_directory(root, "/");
  for (const char *end = path + 1; parent >= 0; end++) {
    if (*end != '/' && *end != '\0') continue;
    snprintf(prefix, sizeof prefix, "%.*s", (int)(end - path), path);
    const char *name = strrchr(prefix, '/') + 1;
    int found = open_directory(root, prefix);
    if (found < 0 && errno == ENOENT && (mkdirat(parent, name, 0755) == 0 || errno == EEXIST))
      found = open_directory(root, prefix);
    int error = errno;
    close(parent);
    errno = error;
    parent = found;
    if (*end == '\0') break;
  }
  return parent;
}

static bool shows(int directory, int tree) {
  struct stat shown, meant;
  return fstat(directory, &shown) == 0 && fstat(tree, &meant) == 0 &&
         shown.st_dev == meant.st_dev && shown.st_ino == meant.st_ino;
}

/* Nobody but the container's users can own a file there; directories are its root's. */
static void act_as(uid_t owner) {
  umask(022);
  if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) != 0) fail(FAILED, "rights", errno);
  setfsgid(owner);
  setfsuid(owner);
}

int main(int argc, char **argv) {
  struct disk_mount mounts[DISK_MOUNTS_MAX];
  if (argc < 3) fail(FAILED, "mount-disks", EINVAL);
  int users = open_namespace(argv[1], "user");
  int namespace = open_namespace(argv[1], "mnt");
  int count = make_disk_trees(argc - 3, argv + 3, users, mounts);
  if (setns(namespace, CLONE_NEWNS) != 0) fail(FAILED, "mount namespace", errno);
  int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) fail(FAILED, "/", errno);
  act_as((uid_t)strtoul(argv[2], NULL, 10));
  for (int index = 0; index < count; index++) {
    const struct disk_mount *mount = &mounts[index];
    int target = provide_directory(root, mount->target);
    if (target < 0) fail(FAILED, mount->target, errno);
    if (!shows(target, mount->tree) &&
        move_mount(mount->tree, "", target, "",
                   MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) != 0)
      fail(FAILED, mount->target, errno);
    close(target);
  }
  return 0;
}
