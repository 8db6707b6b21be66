#define _GNU_SOURCE
#include "root.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trim.h"

#define NEW_ROOT "/mnt"

static char root_device[64];

static int make_directory(const char *path) {
  return mkdir(path, 0755) == 0 || errno == EEXIST ? 0 : errno;
}

static int mount_at(const char *type, const char *path, unsigned long flags, const char *data) {
  int error = make_directory(path);
  if (error != 0) return error;
  return mount(type, path, type, flags, data) == 0 || errno == EBUSY ? 0 : errno;
}

int mount_initial(void) {
  static const struct {
    const char *type, *path, *data;
    unsigned long flags;
    bool optional;
  } all[] = {
      {"proc", "/proc", "", MS_NOSUID | MS_NODEV | MS_NOEXEC, false},
      {"sysfs", "/sys", "", MS_NOSUID | MS_NODEV | MS_NOEXEC, false},
      {"devtmpfs", "/dev", "mode=755", MS_NOSUID, false},
      {"devpts", "/dev/pts", "mode=620,gid=5,ptmxmode=666", MS_NOSUID | MS_NOEXEC, false},
      {"tmpfs", "/dev/shm", "mode=1777", MS_NOSUID | MS_NODEV, false},
      {"tmpfs", "/run", "mode=755", MS_NOSUID | MS_NODEV, false},
      {"cgroup2", "/sys/fs/cgroup", "", MS_NOSUID | MS_NODEV | MS_NOEXEC, true},
  };
  for (size_t index = 0; index < sizeof all / sizeof *all; index++) {
    int error = mount_at(all[index].type, all[index].path, all[index].flags, all[index].data);
    if (error != 0 && !all[index].optional) return error;
  }
  return make_directory(NEW_ROOT);
}

/* Drops what was cached of the device before the host put the real disk behind it. */
static int forget_cached(const char *device) {
  int fd = open(device, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  int error = ioctl(fd, BLKFLSBUF) == 0 ? 0 : errno;
  close(fd);
  return error;
}

static int move_mounts(void) {
  static const char *const paths[] = {"/dev", "/proc", "/sys", "/run"};
  char target[64];
  for (size_t index = 0; index < sizeof paths / sizeof *paths; index++) {
    snprintf(target, sizeof target, NEW_ROOT "%s", paths[index]);
    int error = make_directory(target);
    if (error != 0) return error;
    if (mount(paths[index], target, NULL, MS_MOVE, NULL) != 0) return errno;
  }
  return 0;
}

int switch_root(const char *device, const char *type) {
  if (root_device[0] != '\0') return strcmp(root_device, device) == 0 ? 0 : EBUSY;
  int error = forget_cached(device);
  if (error != 0) return error;
  /* With discard, the host gets the space of deleted files back. */
  if (mount(device, NEW_ROOT, type, MS_NOATIME, "discard") != 0) return errno;
  error = move_mounts();
  if (error != 0) return error;
  if (chdir(NEW_ROOT) != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0) return errno;
  if (chroot(".") != 0 || chdir("/") != 0) return errno;
  snprintf(root_device, sizeof root_device, "%s", device);
  remember_groups(device);
  return 0;
}

void finish_root(void) {
  if (root_device[0] != '\0') {
    sync();
    mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY | MS_NOATIME, NULL);
    return;
  }
  /* Without a disk of its own the other file systems of the kernel are the host's. */
  int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) return;
  syncfs(root);
  close(root);
}
