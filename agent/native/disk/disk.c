/*
 * Attaches or detaches one disk. When the disk's storage hangs, only this process hangs: the agent
 * starts it on a leash (leash.c) and with a deadline.
 *
 * Usage: disk attach IMAGE DIRECTORY FIRST-LOOP WAIT-MS
 *            Locks the image, waiting at most that long for a former attachment to end, and mounts
 *            it. Prints the name of the loop device.
 *        disk attach-read-only IMAGE DIRECTORY FIRST-LOOP
 *            The same for a file that nobody writes to any more; any number of times.
 *        disk detach IMAGE DIRECTORY WAIT-MS
 *            Unmounts it, lazily if it is in use, and waits at most that long until the image is
 *            free. Prints `lazily` in that case. With an empty IMAGE it unmounts all that is
 *            mounted there, and does not wait.
 *        disk abandon DIRECTORY
 *            Has the disk that is mounted there write nothing any more, not even what it has been
 *            given: for a host whose disk is another's by now. It stays mounted.
 *        disk await IMAGE WAIT-MS
 *            Waits at most that long until the image is free.
 *        disk find IMAGE FIRST-LOOP
 *            Prints the name of this host's loop device that has the image, if there is one.
 *        disk sweep FIRST-LOOP
 *            Removes loop devices that nothing is attached to.
 *
 * Two attachments of one image would destroy its file system. An exclusive lock (flock(2)) prevents
 * that. It is held by the open file that the loop device gets, so the kernel releases it when the
 * loop device does, not when some process ends. On storage that shares locks between hosts (NFS,
 * CephFS) it excludes other hosts as well.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <linux/major.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "../common/disk-failure.h"
#include "../common/disk-loop.h"

enum { BLOCK_BYTES = 4096, LOG_BYTES = 1024 };

/* Ext4 exports neither (fs/ext4/ext4.h). */
#define SHUTDOWN _IOR('X', 125, uint32_t)
enum { WITHOUT_LOG = 2 };

static const char *const WARMED[] = {"contents", "uploads"};

static int number(const char *text) {
  char *end;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || value < 0 || value > 1 << 30)
    fail(FAILED, text, EINVAL);
  return (int)value;
}

static int open_image(const char *path, int access) {
  int image = open(path, access | O_CLOEXEC);
  if (image < 0 && errno == ENOENT) fail(NO_IMAGE, path, errno);
  if (image < 0) fail_on_storage(path, errno);
  return image;
}

/*
 * Storage that hangs must hang here, where it harms nobody: a loop device that is being set up
 * would hang everybody who opens it, for example to look for a free one.
 */
static void try_storage(int image, const char *path) {
  static char block[BLOCK_BYTES];
  struct statfs room;
  struct stat status;
  if (fstatfs(image, &room) != 0 || fstat(image, &status) != 0) fail_on_storage(path, errno);
  if (status.st_nlink == 0) fail(NO_IMAGE, path, ENOENT); /* Deleted after it was opened. */
  if (pread(image, block, sizeof block, 0) < 0) fail_on_storage(path, errno);
}

static void refuse_other_loops(int image, const char *path, int own) {
  int other = other_loop_on(image, path, own);
  if (other < 0) return;
  fprintf(stderr, "%s is also attached to loop%d\n", path, other);
  exit(ATTACHED_ELSEWHERE);
}

static _Noreturn void fail_with_log(int context, const char *what) {
  char log[LOG_BYTES];
  int error = errno;
  for (ssize_t length; (length = read(context, log, sizeof log - 1)) > 0;)
    fprintf(stderr, "%.*s\n", (int)length, log);
  /* The loop device passes on every error of the storage as EIO. */
  fail(error == EIO || error == EROFS ? STORAGE_FAILED : FAILED, what, error);
}

/*
 * nodev, nosuid: files of a disk must not act as devices, or with their owner's rights, on the
 * host.
 */
static int make_mount(const char *device, bool is_read_only) {
  unsigned attributes = MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOATIME;
  int context = fsopen("ext4", FSOPEN_CLOEXEC);
  if (context < 0) fail(FAILED, "fsopen", errno);
  if (fsconfig(context, FSCONFIG_SET_STRING, "source", device, 0) != 0 ||
      fsconfig(context, FSCONFIG_SET_FLAG, is_read_only ? "ro" : "discard", NULL, 0) != 0 ||
      fsconfig(context, FSCONFIG_SET_STRING, "errors", "remount-ro", 0) != 0 ||
      fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) != 0)
    fail_with_log(context, device);
  if (is_read_only) attributes |= MOUNT_ATTR_RDONLY;
  int mount = fsmount(context, FSMOUNT_CLOEXEC, attributes);
  if (mount < 0) fail_with_log(context, device);
  close(context);
  return mount;
}

/* Reads what the agent looks at first, so that slow storage blocks this process, not the agent. */
static void warm(int mount) {
  for (size_t index = 0; index < sizeof WARMED / sizeof *WARMED; index++) {
    int fd = openat(mount, WARMED[index], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (directory == NULL) continue; /* A new disk has no layout yet. */
    (void)readdir(directory);
    closedir(directory);
  }
}

static int attach(const char *path, const char *directory, int first_loop, int wait_ms) {
  char device[64];
  int loop_number;
  int image = open_image(path, O_RDWR);
  lock_image(image, path, wait_ms);
  try_storage(image, path);
  refuse_other_loops(image, path, -1); /* Somebody may have attached it without the lock. */
  int loop = attach_loop(image, path, first_loop, 0, &loop_number);
  refuse_other_loops(image, path, loop_number);
  snprintf(device, sizeof device, "/dev/loop%d", loop_number);
  int mount = make_mount(device, false);
  warm(mount);
  refuse_other_loops(image, path, loop_number);
  if (move_mount(mount, "", AT_FDCWD, directory, MOVE_MOUNT_F_EMPTY_PATH) != 0)
    fail(FAILED, directory, errno);
  close(mount);
  close(loop);
  printf("loop%d\n", loop_number);
  return ENDED_WELL;
}

/* Without a lock, since the file never changes: other mounts of it, and readers, do no harm. */
static int attach_read_only(const char *path, const char *directory, int first_loop) {
  char device[64];
  int loop_number;
  int image = open_image(path, O_RDONLY);
  try_storage(image, path);
  int loop = attach_loop(image, path, first_loop, LO_FLAGS_READ_ONLY, &loop_number);
  snprintf(device, sizeof device, "/dev/loop%d", loop_number);
  int mount = make_mount(device, true);
  if (move_mount(mount, "", AT_FDCWD, directory, MOVE_MOUNT_F_EMPTY_PATH) != 0)
    fail(FAILED, directory, errno);
  close(mount);
  close(loop);
  return ENDED_WELL;
}

static int wait_until_free(const char *path, int wait_ms) {
  int image = open(path, O_RDWR | O_CLOEXEC);
  if (image < 0 && errno == ENOENT) return ENDED_WELL;
  if (image < 0) fail_on_storage(path, errno);
  lock_image(image, path, wait_ms);
  return ENDED_WELL;
}

static int find_own_loop(const char *path, int first_loop) {
  int image = open_image(path, O_RDONLY);
  int found = loop_of_host_on(image, path, first_loop);
  if (found >= 0) printf("loop%d\n", found);
  return ENDED_WELL;
}

/* Whether something was mounted there. */
static bool unmount(const char *directory) {
  if (umount2(directory, UMOUNT_NOFOLLOW) == 0) return true;
  if (errno == EINVAL || errno == ENOENT) return false;
  /* A process of the host still uses it; the kernel removes the mount when that ends. */
  if (errno != EBUSY || umount2(directory, UMOUNT_NOFOLLOW | MNT_DETACH) != 0)
    fail(FAILED, directory, errno);
  puts("lazily");
  return true;
}

static int detach(const char *path, const char *directory, int wait_ms) {
  bool is_leftover = path[0] == '\0';
  /* Leftover mounts may be stacked. */
  while (unmount(directory) && is_leftover) continue;
  fflush(stdout);
  if (rmdir(directory) != 0 && errno != ENOENT) fail(FAILED, directory, errno);
  return is_leftover ? ENDED_WELL : wait_until_free(path, wait_ms);
}

/* Shuts nothing but a disk down: the directory itself may be on a file system of the host. */
static int abandon(const char *directory) {
  const uint32_t how = WITHOUT_LOG;
  struct stat status, parent;
  int mount = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (mount < 0 || fstat(mount, &status) != 0 || fstatat(mount, "..", &parent, 0) != 0)
    fail(FAILED, directory, errno);
  if (major(status.st_dev) != LOOP_MAJOR || status.st_dev == parent.st_dev)
    fail(FAILED, directory, ENOTBLK);
  if (ioctl(mount, SHUTDOWN, &how) != 0) fail(FAILED, directory, errno);
  return ENDED_WELL;
}

int main(int argc, char **argv) {
  const char *command = argc > 1 ? argv[1] : "";
  if (strcmp(command, "attach") == 0 && argc == 6)
    return attach(argv[2], argv[3], number(argv[4]), number(argv[5]));
  if (strcmp(command, "attach-read-only") == 0 && argc == 5)
    return attach_read_only(argv[2], argv[3], number(argv[4]));
  if (strcmp(command, "detach") == 0 && argc == 5) return detach(argv[2], argv[3], number(argv[4]));
  if (strcmp(command, "abandon") == 0 && argc == 3) return abandon(argv[2]);
  if (strcmp(command, "await") == 0 && argc == 4) return wait_until_free(argv[2], number(argv[3]));
  if (strcmp(command, "find") == 0 && argc == 4) return find_own_loop(argv[2], number(argv[3]));
  if (strcmp(command, "sweep") == 0 && argc == 3) {
    sweep_loops(number(argv[2]));
    return ENDED_WELL;
  }
  fail(FAILED, "disk", EINVAL);
}
