#define _GNU_SOURCE
#include "file-place.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { LINKS_MAX = 40 }; /* The kernel's own limit (path_resolution(7)). */

int open_safely(int directory, const char *path, int flags, uint64_t more_resolve) {
  struct open_how how = {
      .flags = (unsigned int)flags | O_CLOEXEC,
      .resolve = RESOLVE_NO_MAGICLINKS | more_resolve,
  };
  return (int)syscall(SYS_openat2, directory, path, &how, sizeof how);
}

bool is_kernel_file_system(int fd) {
  /* procfs, sysfs, cgroup v1 and v2, debugfs, tracefs (linux/magic.h). */
  static const uint32_t kinds[] = {0x9fa0,     0x62656572, 0x27e0eb,
                                   0x63677270, 0x64626720, 0x74726163};
  struct statfs system;
  if (fstatfs(fd, &system) != 0) return false;
  for (size_t index = 0; index < sizeof kinds / sizeof *kinds; index++)
    if ((uint32_t)system.f_type == kinds[index]) return true;
  return false;
}

bool is_disk_of_host(int fd) {
  struct statfs system;
  return fstatfs(fd, &system) == 0 && (uint32_t)system.f_type == NFS_SUPER_MAGIC;
}

static uid_t owner_of(const struct file_task *task) {
  return task->uid == UNASKED ? task->default_uid : task->uid;
}

static gid_t group_of(const struct file_task *task) {
  return task->gid == UNASKED ? task->default_gid : task->gid;
}

/* A new directory belongs to its user before others may see into it. 0, or an error number. */
int make_directory(const struct file_task *task, int parent, const char *name, mode_t mode) {
  if (mkdirat(parent, name, 0700) != 0) return errno;
  int fd = open_safely(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, RESOLVE_NO_XDEV);
  if (fd < 0) return errno;
  bool is_owned = fchown(fd, owner_of(task), group_of(task)) == 0 && fchmod(fd, mode) == 0;
  int error = is_owned ? 0 : errno;
  close(fd);
  if (error != 0) unlinkat(parent, name, AT_REMOVEDIR);
  return error;
}

/* Opens a directory, and makes those that are missing on the way. -1 and errno. */
static int open_parents(const struct file_task *task, int from, const char *path) {
  char part[FILE_PATH_MAX + 1];
  snprintf(part, sizeof part, "%s", path);
  char *rest = part;
  int directory = open_safely(from, *part == '/' ? "/" : ".", O_PATH | O_DIRECTORY, 0);
  while (directory >= 0 && *(rest += strspn(rest, "/")) != '\0') {
    char *name = rest;
    rest += strcspn(rest, "/");
    if (*rest != '\0') *rest++ = '\0';
    int next = open_safely(directory, name, O_PATH | O_DIRECTORY, 0);
    if (next < 0 && errno == ENOENT) {
      int error = make_directory(task, directory, name, 0755);
      errno = error;
      if (error == 0 || error == EEXIST)
        next = open_safely(directory, name, O_PATH | O_DIRECTORY, 0);
    }
    int error = errno;
    close(directory);
    errno = error;
    directory = next;
  }
  return directory;
}

/* Opens the directory of a path and says the name in it. 0, or an error number. */
static int open_parent(const struct file_task *task, int from, const char *path,
                       struct place *place) {
  char above[FILE_PATH_MAX + 1];
  const char *slash = strrchr(path, '/');
  const char *name = slash == NULL ? path : slash + 1;
  if (*name == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return EISDIR;
  if (strlen(name) > NAME_MAX) return ENAMETOOLONG;
  snprintf(above, sizeof above, "%.*s", slash == NULL ? 0 : (int)(slash - path), path);
  const char *parent = slash == path ? "/" : *above == '\0' ? "." : above;
  int directory = open_safely(from, parent, O_PATH | O_DIRECTORY, 0);
  if (directory < 0 && errno == ENOENT && (task->flags & ASKED_PARENTS) != 0)
    directory = open_parents(task, from, parent);
  if (directory < 0) return errno;
  place->directory = directory;
  snprintf(place->name, sizeof place->name, "%s", name);
  return 0;
}

int look_at_place(struct place *place) {
  int found = fstatat(place->directory, place->name, &place->found, AT_SYMLINK_NOFOLLOW);
  place->exists = found == 0;
  return found == 0 || errno == ENOENT ? 0 : errno;
}

int find_place(const struct file_task *task, const char *path, bool follow, struct place *place) {
  static char target[PATH_MAX + 1];
  int error = open_parent(task, AT_FDCWD, path, place);
  for (int links = 0; error == 0; links++) {
    error = look_at_place(place);
    if (error != 0 || !follow || !place->exists || !S_ISLNK(place->found.st_mode)) return error;
    /* Links of /proc do not lead where their text says. */
    if (links == LINKS_MAX || is_kernel_file_system(place->directory)) return ELOOP;
    ssize_t length = readlinkat(place->directory, place->name, target, PATH_MAX);
    if (length < 0 || length > FILE_PATH_MAX) return length < 0 ? errno : ENAMETOOLONG;
    target[length] = '\0';
    int from = place->directory;
    error = open_parent(task, from, target, place);
    close(from);
  }
  return error;
}
