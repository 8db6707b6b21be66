/*
 * Files beneath a directory whose contents callers control, as part of the addon.
 *
 *   openBeneath(root, path, flags)      -> Promise<number>  a descriptor, close-on-exec
 *     Resolved beneath the root (openat2(2), RESOLVE_BENEATH). O_PATH opens anything, O_DIRECTORY a
 *     directory, other flags a regular file; see open_file_beneath.
 *   write(fd, offset, chunks)           -> Promise<void>    all of the buffers, from the offset on
 *   writeBack(fd, offset, length)       -> Promise<void>    starts it (sync_file_range(2))
 *   copyRange(from, to, fromOffset, toOffset, length) -> Promise<number>
 *     copy_file_range(2), repeated: fewer bytes than the length only at the end of the file.
 *   getAttribute(fd, name)              -> Promise<Buffer | undefined>    fgetxattr(2)
 *   setAttribute(fd, name, value)       -> Promise<void>    fsetxattr(2)
 *   setTimes(fd, time)                  -> Promise<void>    both, in nanoseconds (futimens(2))
 */
#define _GNU_SOURCE
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "../common/beneath.h"
#include "attribute.h"
#include "chunks.h"
#include "task.h"

enum { SECOND_NS = 1000000000 };

struct file_task {
  struct task task;
  char *root, *path, *name; /* `name`: of an attribute. */
  int fd, to, flags;
  int64_t offset, to_offset, length, time;
  struct chunks chunks;
  uint8_t *value; /* Value of an attribute. */
};

static void release(struct task *task) {
  struct file_task *file = (struct file_task *)task;
  free(file->root);
  free(file->path);
  free(file->name);
  free_chunks(&file->chunks);
  free(file->value);
}

static napi_value result_fd(napi_env env, struct task *task) {
  napi_value value;
  napi_create_int32(env, ((struct file_task *)task)->fd, &value);
  return value;
}

static napi_value result_length(napi_env env, struct task *task) {
  napi_value value;
  napi_create_int64(env, ((struct file_task *)task)->length, &value);
  return value;
}

static napi_value result_attribute(napi_env env, struct task *task) {
  struct file_task *file = (struct file_task *)task;
  napi_value value;
  if (file->length == ATTRIBUTE_ABSENT) return result_nothing(env, task);
  napi_create_buffer_copy(env, (size_t)file->length, file->value, NULL, &value);
  return value;
}

static struct file_task *new_file_task(int (*run)(struct task *),
                                       napi_value (*result)(napi_env, struct task *)) {
  struct file_task *file = calloc(1, sizeof *file);
  if (file != NULL) file->task = (struct task){.run = run, .result = result, .release = release};
  return file;
}

static int run_open(struct task *task) {
  struct file_task *file = (struct file_task *)task;
  struct stat found;
  file->fd = open_file_beneath(file->root, file->path, file->flags, &found);
  return file->fd < 0 ? errno : 0;
}

static int run_write(struct task *task) {
  struct file_task *file = (struct file_task *)task;
  struct iovec *next = file->chunks.list;
  uint32_t left = file->chunks.count;
  while (left > 0) {
    ssize_t written = pwritev(file->fd, next, (int)left, file->offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    file->offset += written;
    while (left > 0 && (size_t)written >= next->iov_len) {
      written -= (ssize_t)next->iov_len;
      next++;
      left--;
    }
    if (left > 0) {
      next->iov_base = (uint8_t *)next->iov_base + written;
      next->iov_len -= (size_t)written;
    }
  }
  return 0;
}

static int run_write_back(struct task *task) {
  struct file_task *file = (struct file_task *)task;
  unsigned flags = SYNC_FILE_RANGE_WRITE;
  return sync_file_range(file->fd, file->offset, file->length, flags) == 0 ? 0 : errno;
}

static int run_copy_range(struct task *task) {
  struct file_task *file = (struct file_task *)task;
  int64_t left = file->length;
  while (left > 0) {
    ssize_t copied =
        copy_file_range(file->fd, &file->offset, file->to, &file->to_offset, (size_t)left, 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied < 0) return errno;
    if (copied == 0) break;
    left -= copied;
  }
  file->length -= left;
  return 0;
}

static int run_get_attribute(struct task *task) {
  struct file_task *file = (struct file_task *)task;
  file->length = read_attribute(file->fd, file->name, &file->value);
  return file->length < ATTRIBUTE_ABSENT ? errno : 0;
}

static int run_set_attribute(struct task *task) {
  struct file_task *file = (struct file_task *)task;
  return fsetxattr(file->fd, file->name, file->value, (size_t)file->length, 0) == 0 ? 0 : errno;
}

static int run_set_times(struct task *task) {
  struct file_task *file = (struct file_task *)task;
  int64_t seconds = file->time / SECOND_NS, rest = file->time % SECOND_NS;
  struct timespec time = {.tv_sec = rest < 0 ? seconds - 1 : seconds,
                          .tv_nsec = rest < 0 ? rest + SECOND_NS : rest};
  return futimens(file->fd, (struct timespec[2]){time, time}) == 0 ? 0 : errno;
}

static bool read_int32(napi_env env, napi_value value, int32_t *into) {
  return napi_get_value_int32(env, value, into) == napi_ok;
}

static bool read_size(napi_env env, napi_value value, int64_t *into) {
  return napi_get_value_int64(env, value, into) == napi_ok && *into >= 0;
}

static napi_value js_open_beneath(napi_env env, napi_callback_info info) {
  napi_value args[3];
  struct file_task *file = new_file_task(run_open, result_fd);
  if (file == NULL || !read_arguments(env, info, 3, args) ||
      (file->root = copy_text(env, args[0])) == NULL ||
      (file->path = copy_text(env, args[1])) == NULL || !read_int32(env, args[2], &file->flags))
    return refuse_task(env, &file->task);
  return start_task(env, &file->task, "openat2", NULL);
}

static napi_value js_write(napi_env env, napi_callback_info info) {
  napi_value args[3];
  struct file_task *file = new_file_task(run_write, result_nothing);
  if (file == NULL || !read_arguments(env, info, 3, args) || !read_int32(env, args[0], &file->fd) ||
      !read_size(env, args[1], &file->offset) || !read_chunks(env, args[2], &file->chunks))
    return refuse_task(env, &file->task);
  return start_task(env, &file->task, "pwritev", args[2]);
}

static napi_value js_write_back(napi_env env, napi_callback_info info) {
  napi_value args[3];
  struct file_task *file = new_file_task(run_write_back, result_nothing);
  if (file == NULL || !read_arguments(env, info, 3, args) || !read_int32(env, args[0], &file->fd) ||
      !read_size(env, args[1], &file->offset) || !read_size(env, args[2], &file->length))
    return refuse_task(env, &file->task);
  return start_task(env, &file->task, "sync_file_range", NULL);
}

static napi_value js_copy_range(napi_env env, napi_callback_info info) {
  napi_value args[5];
  struct file_task *file = new_file_task(run_copy_range, result_length);
  if (file == NULL || !read_arguments(env, info, 5, args) || !read_int32(env, args[0], &file->fd) ||
      !read_int32(env, args[1], &file->to) || !read_size(env, args[2], &file->offset) ||
      !read_size(env, args[3], &file->to_offset) || !read_size(env, args[4], &file->length))
    return refuse_task(env, &file->task);
  return start_task(env, &file->task, "copy_file_range", NULL);
}

static napi_value js_get_attribute(napi_env env, napi_callback_info info) {
  napi_value args[2];
  struct file_task *file = new_file_task(run_get_attribute, result_attribute);
  if (file == NULL || !read_arguments(env, info, 2, args) || !read_int32(env, args[0], &file->fd) ||
      (file->name = copy_text(env, args[1])) == NULL)
    return refuse_task(env, &file->task);
  return start_task(env, &file->task, "fgetxattr", NULL);
}

static napi_value js_set_attribute(napi_env env, napi_callback_info info) {
  napi_value args[3];
  bool is_buffer = false;
  void *value;
  size_t length;
  struct file_task *file = new_file_task(run_set_attribute, result_nothing);
  if (file == NULL || !read_arguments(env, info, 3, args) || !read_int32(env, args[0], &file->fd) ||
      (file->name = copy_text(env, args[1])) == NULL ||
      napi_is_buffer(env, args[2], &is_buffer) != napi_ok || !is_buffer ||
      napi_get_buffer_info(env, args[2], &value, &length) != napi_ok || length > XATTR_SIZE_MAX ||
      (file->value = malloc(length + 1)) == NULL)
    return refuse_task(env, &file->task);
  if (length > 0) memcpy(file->value, value, length);
  file->length = (int64_t)length;
  return start_task(env, &file->task, "fsetxattr", NULL);
}

static napi_value js_set_times(napi_env env, napi_callback_info info) {
  napi_value args[2];
  bool is_whole = false;
  struct file_task *file = new_file_task(run_set_times, result_nothing);
  if (file == NULL || !read_arguments(env, info, 2, args) || !read_int32(env, args[0], &file->fd) ||
      napi_get_value_bigint_int64(env, args[1], &file->time, &is_whole) != napi_ok || !is_whole)
    return refuse_task(env, &file->task);
  return start_task(env, &file->task, "futimens", NULL);
}

void define_file_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"openBeneath", NULL, js_open_beneath, NULL, NULL, NULL, napi_enumerable, NULL},
      {"write", NULL, js_write, NULL, NULL, NULL, napi_enumerable, NULL},
      {"writeBack", NULL, js_write_back, NULL, NULL, NULL, napi_enumerable, NULL},
      {"copyRange", NULL, js_copy_range, NULL, NULL, NULL, napi_enumerable, NULL},
      {"getAttribute", NULL, js_get_attribute, NULL, NULL, NULL, napi_enumerable, NULL},
      {"setAttribute", NULL, js_set_attribute, NULL, NULL, NULL, napi_enumerable, NULL},
      {"setTimes", NULL, js_set_times, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
