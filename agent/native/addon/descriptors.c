/*
 * Descriptors of another process, and trees of files, as part of the addon.
 *
 *   takeDescriptor(pid, fd)      -> number       a copy of the process's descriptor, close-on-exec
 *     pidfd_getfd(2). A copy of one that a fanotify group delivered stays one: its use asks nobody.
 *   removeAttribute(fd, name)    -> Promise<void>    fremovexattr(2); no error when there is none
 *   syncFileSystem(root)         -> Promise<void>    syncfs(2)
 *   walkFiles(root, filesMax, bytesMax) -> Promise<Buffer>
 *     All regular files below a directory, which is not followed when it is a link. First, as
 *     int64, the number of files and directories that were left out because they lie too deep or
 *     their paths are longer than system calls take. Then each file: length of the path as uint32,
 *     then inode, size, mtime, ctime and atime as int64 (nanoseconds), little-endian, and the path,
 *     relative, as bytes. What disappears or moves meanwhile may be left out. EOVERFLOW when there
 *     are more files, or the buffer would be larger.
 *   inodeHasAttribute(root, inode, name) -> Promise<boolean>
 *     Whether the file system mounted at root has a file with this inode, under whatever name, that
 *     has the attribute (open_by_handle_at(2)). ext4 only.
 */
#define _GNU_SOURCE
#include "descriptors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "task.h"

enum { HEAD_BYTES = 44, FIRST_BYTES = 65536, DEPTH_MAX = 512 };
enum { INODE_AND_GENERATION = 1, ANY_GENERATION = 0 };

struct attribute_task {
  struct task task;
  int fd;
  uint32_t inode;
  char *root, *name;
  bool is_found;
};

struct walk {
  struct task task;
  char *root;
  char path[PATH_MAX];
  uint8_t *bytes;
  size_t length, room;
  uint32_t files, files_max, bytes_max;
  int64_t left_out;
};

static napi_value js_take_descriptor(napi_env env, napi_callback_info info) {
  napi_value args[2], result;
  int32_t pid, fd;
  if (!read_arguments(env, info, 2, args) || napi_get_value_int32(env, args[0], &pid) != napi_ok ||
      napi_get_value_int32(env, args[1], &fd) != napi_ok)
    return refuse_task(env, NULL);
  int process = (int)syscall(SYS_pidfd_open, pid, 0);
  int copy = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, fd, 0);
  int error = errno;
  if (process >= 0) close(process);
  if (copy < 0) {
    napi_throw(env, make_error(env, error, "takeDescriptor"));
    return NULL;
  }
  napi_create_int32(env, copy, &result);
  return result;
}

static void release_attribute(struct task *task) {
  struct attribute_task *attribute = (struct attribute_task *)task;
  free(attribute->root);
  free(attribute->name);
}

static int remove_attribute(struct task *task) {
  struct attribute_task *attribute = (struct attribute_task *)task;
  if (fremovexattr(attribute->fd, attribute->name) == 0 || errno == ENODATA) return 0;
  return errno;
}

static napi_value js_remove_attribute(napi_env env, napi_callback_info info) {
  napi_value args[2];
  struct attribute_task *attribute = calloc(1, sizeof *attribute);
  if (attribute == NULL) return refuse_task(env, NULL);
  attribute->task = (struct task){
      .run = remove_attribute, .result = result_nothing, .release = release_attribute};
  if (!read_arguments(env, info, 2, args) ||
      napi_get_value_int32(env, args[0], &attribute->fd) != napi_ok ||
      (attribute->name = copy_text(env, args[1])) == NULL)
    return refuse_task(env, &attribute->task);
  return start_task(env, &attribute->task, "removeAttribute", NULL);
}

/* ext4 names an inode in file handles by its number and generation (FILEID_INO32_GEN). */
static int find_inode(struct task *task) {
  struct attribute_task *attribute = (struct attribute_task *)task;
  _Alignas(struct file_handle) uint8_t bytes[sizeof(struct file_handle) + 2 * sizeof(uint32_t)];
  struct file_handle *handle = (struct file_handle *)bytes;
  const uint32_t name[2] = {attribute->inode, ANY_GENERATION};
  struct stat status;
  char path[32];
  handle->handle_bytes = sizeof name;
  handle->handle_type = INODE_AND_GENERATION;
  memcpy(handle->f_handle, name, sizeof name);
  int root = open(attribute->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) return errno;
  int fd = open_by_handle_at(root, handle, O_PATH | O_CLOEXEC);
  int error = errno;
  close(root);
  if (fd < 0) return error == ESTALE ? 0 : error;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  attribute->is_found = fstat(fd, &status) == 0 && status.st_nlink > 0 &&
                        getxattr(path, attribute->name, NULL, 0) >= 0;
  close(fd);
  return 0;
}

static int sync_file_system(struct task *task) {
  int root = open(((struct attribute_task *)task)->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) return errno;
  int error = syncfs(root) == 0 ? 0 : errno;
  close(root);
  return error;
}

static napi_value js_sync_file_system(napi_env env, napi_callback_info info) {
  napi_value args[1];
  struct attribute_task *attribute = calloc(1, sizeof *attribute);
  if (attribute == NULL) return refuse_task(env, NULL);
  attribute->task = (struct task){
      .run = sync_file_system, .result = result_nothing, .release = release_attribute};
  if (!read_arguments(env, info, 1, args) || (attribute->root = copy_text(env, args[0])) == NULL)
    return refuse_task(env, &attribute->task);
  return start_task(env, &attribute->task, "syncFileSystem", NULL);
}

static napi_value result_found(napi_env env, struct task *task) {
  napi_value value;
  napi_get_boolean(env, ((struct attribute_task *)task)->is_found, &value);
  return value;
}

static napi_value js_inode_has_attribute(napi_env env, napi_callback_info info) {
  napi_value args[3];
  struct attribute_task *attribute = calloc(1, sizeof *attribute);
  if (attribute == NULL) return refuse_task(env, NULL);
  attribute->task =
      (struct task){.run = find_inode, .result = result_found, .release = release_attribute};
  if (!read_arguments(env, info, 3, args) || (attribute->root = copy_text(env, args[0])) == NULL ||
      napi_get_value_uint32(env, args[1], &attribute->inode) != napi_ok ||
      (attribute->name = copy_text(env, args[2])) == NULL)
    return refuse_task(env, &attribute->task);
  return start_task(env, &attribute->task, "inodeHasAttribute", NULL);
}

static int make_room(struct walk *walk, size_t bytes) {
  if (walk->length + bytes > walk->bytes_max) return EOVERFLOW;
  size_t room = walk->room == 0 ? FIRST_BYTES : walk->room;
  while (room < walk->length + bytes) room *= 2;
  if (room == walk->room) return 0;
  uint8_t *moved = realloc(walk->bytes, room);
  if (moved == NULL) return ENOMEM;
  walk->bytes = moved;
  walk->room = room;
  return 0;
}

static void put(struct walk *walk, int64_t value) {
  memcpy(walk->bytes + walk->length, &value, sizeof value);
  walk->length += sizeof value;
}

static int64_t nanoseconds(struct timespec time) {
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Names that are left out count as well: a file may have very many. */
static int add_file(struct walk *walk, const struct stat *status, size_t path_bytes) {
  uint32_t length = (uint32_t)path_bytes;
  if (++walk->files > walk->files_max) return EOVERFLOW;
  if (path_bytes >= PATH_MAX) {
    walk->left_out++;
    return 0;
  }
  int error = make_room(walk, HEAD_BYTES + path_bytes);
  if (error != 0) return error;
  memcpy(walk->bytes + walk->length, &length, sizeof length);
  walk->length += sizeof length;
  put(walk, (int64_t)status->st_ino);
  put(walk, status->st_size);
  put(walk, nanoseconds(status->st_mtim));
  put(walk, nanoseconds(status->st_ctim));
  put(walk, nanoseconds(status->st_atim));
  memcpy(walk->bytes + walk->length, walk->path, path_bytes);
  walk->length += path_bytes;
  return 0;
}

static bool is_dots(const char *name) {
  return name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'));
}

static int walk_directory(struct walk *walk, int fd, size_t length, int depth);

/* `end` is the end of the directory's path in walk->path. */
// NOLINTNEXTLINE(misc-no-recursion): bounded by DEPTH_MAX.
static int walk_below(struct walk *walk, int parent, const char *name, size_t end, int depth) {
  if (depth == DEPTH_MAX || end + 1 >= PATH_MAX) {
    walk->left_out++;
    return 0;
  }
  int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? 0 : errno;
  walk->path[end] = '/';
  return walk_directory(walk, fd, end + 1, depth + 1);
}

/* Takes over the descriptor. `length` is that of the directory's path, which begins walk->path. */
// NOLINTNEXTLINE(misc-no-recursion): bounded by DEPTH_MAX.
static int walk_directory(struct walk *walk, int fd, size_t length, int depth) {
  int error = 0;
  DIR *directory = fdopendir(fd);
  if (directory == NULL) {
    close(fd);
    return errno;
  }
  for (struct dirent *entry; error == 0 && (entry = readdir(directory)) != NULL;) {
    struct stat status;
    if (is_dots(entry->d_name)) continue;
    size_t end = length + strlen(entry->d_name);
    if (end < PATH_MAX) memcpy(walk->path + length, entry->d_name, end - length);
    if (fstatat(dirfd(directory), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno != ENOENT) error = errno;
      continue;
    }
    if (S_ISREG(status.st_mode))
      error = add_file(walk, &status, end);
    else if (S_ISDIR(status.st_mode))
      error = walk_below(walk, dirfd(directory), entry->d_name, end, depth);
  }
  closedir(directory);
  return error;
}

static int run_walk(struct task *task) {
  struct walk *walk = (struct walk *)task;
  int error = make_room(walk, sizeof walk->left_out);
  if (error != 0) return error;
  walk->length = sizeof walk->left_out;
  int fd = open(walk->root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  error = fd < 0 ? errno : walk_directory(walk, fd, 0, 0);
  memcpy(walk->bytes, &walk->left_out, sizeof walk->left_out);
  return error;
}

static void release_walk(struct task *task) {
  struct walk *walk = (struct walk *)task;
  free(walk->root);
  free(walk->bytes);
}

static napi_value result_walk(napi_env env, struct task *task) {
  struct walk *walk = (struct walk *)task;
  napi_value value;
  napi_create_buffer_copy(env, walk->length, walk->bytes, NULL, &value);
  return value;
}

static napi_value js_walk_files(napi_env env, napi_callback_info info) {
  napi_value args[3];
  struct walk *walk = calloc(1, sizeof *walk);
  if (walk == NULL) return refuse_task(env, NULL);
  walk->task = (struct task){.run = run_walk, .result = result_walk, .release = release_walk};
  if (!read_arguments(env, info, 3, args) || (walk->root = copy_text(env, args[0])) == NULL ||
      napi_get_value_uint32(env, args[1], &walk->files_max) != napi_ok ||
      napi_get_value_uint32(env, args[2], &walk->bytes_max) != napi_ok)
    return refuse_task(env, &walk->task);
  return start_task(env, &walk->task, "walkFiles", NULL);
}

void define_descriptor_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"takeDescriptor", NULL, js_take_descriptor, NULL, NULL, NULL, napi_enumerable, NULL},
      {"removeAttribute", NULL, js_remove_attribute, NULL, NULL, NULL, napi_enumerable, NULL},
      {"inodeHasAttribute", NULL, js_inode_has_attribute, NULL, NULL, NULL, napi_enumerable, NULL},
      {"syncFileSystem", NULL, js_sync_file_system, NULL, NULL, NULL, napi_enumerable, NULL},
      {"walkFiles", NULL, js_walk_files, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
