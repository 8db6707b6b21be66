/*
 * Loaded into the NFS server before its other libraries (LD_PRELOAD): each file handle that it
 * takes from the kernel gets a seal, and a handle without the right one opens nothing.
 *
 * A handle is the number of an inode. The kernel opens any inode of the file system by it, whatever
 * part of that file system is exported, and handles come from a client that may have made them up.
 * So a client opens what it was led to by names, beginning at what is exported, and nothing else:
 * no other directory of the disk, and no inode of another of its disks.
 *
 * Nor does it open a file without a name. A client remembers names for a second, and the server
 * keeps files open: what is written to a file that others have removed meanwhile would be lost. The
 * refusal has the client look the name up again. (What its own processes have open and remove, it
 * renames.)
 *
 * The key (SEAL_KEY, in hexadecimal digits) follows from the disks that the sandbox mounts, so that
 * files stay open over a pause, and in forks.
 */
#define _GNU_SOURCE
#include "seal-handles.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../common/disk-trees.h"
#include "siphash.h"

enum { NAME_BYTES = 64, KERNEL_HANDLE_MAX = MAX_HANDLE_SZ };

/* The seal covers the disk, too: the same inode of another disk is another file. */
struct sealed {
  char disk[NAME_BYTES];
  int32_t type;
  uint8_t handle[KERNEL_HANDLE_MAX];
};

static struct {
  dev_t device;
  char name[NAME_BYTES];
} disks[DISK_MOUNTS_MAX];
static int disk_count;
static uint8_t key[SIPHASH_KEY_BYTES];

/* A server without a key or without disks would only refuse everything: it shall not begin. */
static _Noreturn void refuse(const char *what) {
  fprintf(stderr, "seal-handles: %s\n", what);
  _exit(1);
}

static void read_key(void) {
  const char *digits = getenv("SEAL_KEY");
  if (digits == NULL || strlen(digits) != 2 * sizeof key) refuse("SEAL_KEY");
  for (size_t index = 0; index < sizeof key; index++) {
    const char pair[] = {digits[2 * index], digits[2 * index + 1], '\0'};
    char *end;
    key[index] = (uint8_t)strtoul(pair, &end, 16);
    if (*end != '\0') refuse("SEAL_KEY");
  }
}

static __attribute__((constructor)) void prepare(void) {
  read_key();
  DIR *directory = opendir(SERVED_DISKS);
  if (directory == NULL) refuse(SERVED_DISKS);
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    struct stat status;
    if (entry->d_name[0] == '.') continue;
    if (disk_count == DISK_MOUNTS_MAX || strlen(entry->d_name) >= NAME_BYTES ||
        fstatat(dirfd(directory), entry->d_name, &status, 0) != 0)
      refuse(entry->d_name);
    disks[disk_count].device = status.st_dev;
    memcpy(disks[disk_count++].name, entry->d_name, strlen(entry->d_name));
  }
  closedir(directory);
}

/* Null for a file that is on none of the disks. */
static const char *disk_at(int directory, const char *path, int flags) {
  struct stat status;
  const int followed = flags & AT_SYMLINK_FOLLOW ? 0 : AT_SYMLINK_NOFOLLOW;
  if (fstatat(directory, path, &status, (flags & AT_EMPTY_PATH) | followed) != 0) return NULL;
  for (int index = 0; index < disk_count; index++)
    if (disks[index].device == status.st_dev) return disks[index].name;
  errno = EOPNOTSUPP;
  return NULL;
}

static void seal(const char *disk, const struct file_handle *handle, size_t length,
                 uint8_t code[SIPHASH_BYTES]) {
  struct sealed sealed = {.type = handle->handle_type};
  memcpy(sealed.disk, disk, strlen(disk));
  memcpy(sealed.handle, handle->f_handle, length);
  siphash(key, (const uint8_t *)&sealed, offsetof(struct sealed, handle) + length, code);
}

int name_to_handle_at(int directory, const char *path, struct file_handle *handle, int *mount_id,
                      int flags) {
  const char *disk = disk_at(directory, path, flags);
  unsigned room = handle->handle_bytes;
  if (disk == NULL) return -1;
  handle->handle_bytes = room < SIPHASH_BYTES ? 0 : room - SIPHASH_BYTES;
  int result = (int)syscall(SYS_name_to_handle_at, directory, path, handle, mount_id, flags);
  unsigned length = handle->handle_bytes;
  handle->handle_bytes = length + SIPHASH_BYTES;
  if (result == 0) seal(disk, handle, length, handle->f_handle + length);
  return result;
}

static bool is_sealed(const char *disk, const struct file_handle *handle, size_t length) {
  uint8_t code[SIPHASH_BYTES], difference = 0;
  seal(disk, handle, length, code);
  for (size_t index = 0; index < sizeof code; index++)
    difference |= code[index] ^ handle->f_handle[length + index];
  return difference == 0;
}

static int refuse_nameless(int fd) {
  struct stat status;
  if (fd < 0 || (fstat(fd, &status) == 0 && status.st_nlink > 0)) return fd;
  close(fd);
  errno = ESTALE;
  return -1;
}

int open_by_handle_at(int mount, struct file_handle *handle, int flags) {
  _Alignas(struct file_handle) uint8_t memory[sizeof *handle + KERNEL_HANDLE_MAX];
  struct file_handle *plain = (struct file_handle *)memory;
  const char *disk = disk_at(mount, "", AT_EMPTY_PATH);
  if (disk == NULL) return -1;
  size_t length = (size_t)handle->handle_bytes - SIPHASH_BYTES;
  if (handle->handle_bytes < SIPHASH_BYTES || length > KERNEL_HANDLE_MAX ||
      !is_sealed(disk, handle, length)) {
    errno = ESTALE;
    return -1;
  }
  plain->handle_bytes = (unsigned)length;
  plain->handle_type = handle->handle_type;
  memcpy(plain->f_handle, handle->f_handle, length);
  return refuse_nameless(
      (int)syscall(SYS_open_by_handle_at, mount, plain, flags, (long)SEALED_CALL));
}

/* The server has its parts prefer the calls of the C library to those of this one. */
void *dlopen(const char *path, int flags) {
  typedef void *(*open_function)(const char *, int);
  static open_function next;
  if (next == NULL) *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
  return next(path, flags & ~RTLD_DEEPBIND);
}
