#define _GNU_SOURCE
#include "container-root.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <linux/securebits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "../common/detached-tree.h"
#include "../common/device-nodes.h"
#include "../common/disk-failure.h"
#include "../common/disk-loop.h"

enum { FREE_WITHIN_MS = 10000, PATH_BYTES = 64 };

#define OVERLAY "lowerdir=image,upperdir=disk/upper,workdir=disk/work"
#define DEVICES "size=64k,nr_inodes=128,mode=755"
/* Shown to programs that start before the guest agent has learnt the boot id. */
#define NO_BOOT_ID "00000000-0000-0000-0000-000000000000\n"

static void make_directory(int parent, const char *name) {
  if (mkdirat(parent, name, 0755) != 0 && errno != EEXIST) fail(FAILED, name, errno);
}

/* The owners of files stay what they are inside, so any user of the host can stand for root. */
static void map_owners(int mount, int user_namespace) {
  struct mount_attr attributes = {
      .attr_set = MOUNT_ATTR_IDMAP | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV,
      .userns_fd = (uint64_t)user_namespace,
  };
  if (mount_setattr(mount, "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0)
    fail(FAILED, "the disk", errno);
}

static void move_to(int mount, const char *target) {
  make_directory(AT_FDCWD, target);
  if (move_mount(mount, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH) != 0)
    fail(FAILED, target, errno);
  close(mount);
}

/* The lock goes with the loop device, and with it stays as long as anything uses the disk. */
static int open_disk(const struct container_root *spec, char *device, size_t size) {
  int number, image = open(spec->disk, O_RDWR | O_CLOEXEC);
  if (image < 0) fail(FAILED, spec->disk, errno);
  lock_image(image, spec->disk, FREE_WITHIN_MS);
  int loop = attach_loop(image, spec->disk, spec->first_loop, 0, &number);
  snprintf(device, size, "/dev/loop%d", number);
  close(image);
  return loop;
}

static void mount_disk(const struct container_root *spec) {
  char device[PATH_BYTES];
  int loop = open_disk(spec, device, sizeof device);
  int context = fsopen("ext4", FSOPEN_CLOEXEC);
  if (context < 0 || fsconfig(context, FSCONFIG_SET_STRING, "source", device, 0) != 0 ||
      fsconfig(context, FSCONFIG_SET_FLAG, "discard", NULL, 0) != 0 ||
      fsconfig(context, FSCONFIG_SET_STRING, "errors", "remount-ro", 0) != 0 ||
      fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) != 0)
    fail(FAILED, "the file system of the disk", errno);
  int mount = fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOATIME);
  if (mount < 0) fail(FAILED, "the file system of the disk", errno);
  close(context);
  close(loop);
  make_directory(mount, "upper");
  make_directory(mount, "work");
  map_owners(mount, spec->user_namespace);
  move_to(mount, "disk");
}

static void mount_image(const struct container_root *spec) {
  const uint64_t attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
  int tree = clone_tree(AT_FDCWD, spec->image, attributes, spec->user_namespace);
  if (tree < 0) fail(FAILED, spec->image, errno);
  move_to(tree, "image");
}

static void mount_devices(const struct container_root *spec) {
  make_directory(AT_FDCWD, "dev");
  if (mount("tmpfs", "dev", "tmpfs", MS_NOSUID | MS_NOEXEC, DEVICES) != 0)
    fail(FAILED, "dev", errno);
  int directory = open("dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0 || fill_devices(directory, spec->owner) != 0) fail(FAILED, "dev", errno);
  close(directory);
}

/*
 * The kernel works on the layers in the name of who mounted them, and on these nobody but the
 * container's users can own a file. So root of the container mounts them, with root's rights.
 */
static void mount_layers(uint32_t owner) {
  make_directory(AT_FDCWD, "root");
  if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) != 0) fail(FAILED, "rights", errno);
  setfsgid(owner);
  setfsuid(owner);
  if (mount("overlay", "root", "overlay", MS_NOSUID | MS_NODEV | MS_NOATIME, OVERLAY) != 0)
    fail(FAILED, "the root", errno);
  setfsuid(0);
  setfsgid(0);
  prctl(PR_SET_SECUREBITS, 0);
}

void mount_container_root(const struct container_root *spec) {
  mode_t before = umask(0);
  if (unshare(CLONE_NEWNS) != 0) fail(FAILED, "mount namespace", errno);
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) fail(FAILED, "mounts", errno);
  mount_disk(spec);
  mount_image(spec);
  mount_devices(spec);
  mount_layers(spec->owner);
  umask(before);
}

/* The tree is its tenant's: no link in it is followed, and the file system must be as meant. */
static int open_on(const char *path, uint64_t flags, long file_system) {
  struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
  struct statfs found;
  int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
  if (fd < 0) fail(FAILED, path, errno);
  if (fstatfs(fd, &found) != 0 || found.f_type != file_system) fail(FAILED, path, ENODEV);
  return fd;
}

static int make_boot_id(uint32_t owner) {
  int run = open_on("/run", O_RDONLY | O_DIRECTORY, TMPFS_MAGIC);
  setfsgid(owner);
  setfsuid(owner); /* Nobody else can own a file there. */
  make_directory(run, "berth");
  int file =
      openat(run, "berth/boot-id", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  bool is_written = file >= 0 && write(file, NO_BOOT_ID, sizeof NO_BOOT_ID - 1) > 0;
  if (!is_written) fail(FAILED, "boot id", errno);
  setfsuid(0);
  setfsgid(0);
  close(run);
  return file;
}

void cover_boot_id(pid_t pid, uint32_t owner) {
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "/proc/%d/ns/mnt", (int)pid);
  int namespace = open(path, O_RDONLY | O_CLOEXEC);
  if (namespace < 0 || setns(namespace, CLONE_NEWNS) != 0) fail(FAILED, path, errno);
  umask(022);
  int file = make_boot_id(owner);
  int target = open_on("/proc/sys/kernel/random/boot_id", O_PATH, PROC_SUPER_MAGIC);
  int tree = clone_tree(file, "", 0, -1);
  if (tree < 0 ||
      move_mount(tree, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) != 0)
    fail(FAILED, "boot id", errno);
}
