/*
 * Files beneath a directory whose contents callers control, as part of the addon.
 *
 *   openBeneath(root, path, flags)      -> Promise<number>  a descriptor, close-on-exec
 *     Resolved beneath the root (openat2(2), RESOLVE_BENEATH). O_PATH opens anything, O_DIRECTORY a
 *     directory, other flags a regular file: EISDIR for a directory, and ENXIO for everything else,
 *     which is not opened at all, because a FIFO could block and a device could do anything. EIO
 *     when there is no root.
 *   openObject(root, path, flags, name, contentMax)
 *                                       -> Promise<{ fd, attribute?, content?, changedNs? }>
 *     openBeneath and getAttribute in one call, and the whole content of a regular file of up to
 *     `contentMax` bytes with the ctime from before it was read. While the file still has that
 *     ctime, it still has that content.
 *   write(fd, offset, chunks)           -> Promise<void>    all of the buffers, from the offset on
 *   writeBack(fd, offset, length)       -> Promise<void>    starts it (sync_file_range(2))
 *   copyRange(from, to, fromOffset, toOffset, length) -> Promise<number>
 *     copy_file_range(2), repeated: fewer bytes than the length only at the end of the file.
 *   getAttribute(fd, name)              -> Promise<Buffer | undefined>    fgetxattr(2)
 *   setAttribute(fd, name, value)       -> Promise<void>    fsetxattr(2)
 */
#define _GNU_SOURCE
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "beneath.h"
#include "chunks.h"
#include "task.h"

enum { TICK_NS = 11000000 };

struct file_task {
  struct task task;
  char *root, *path, *name; /* `name`: of an attribute. */
  int fd, to, flags;
  int64_t offset, to_offset, length;
  struct chunks chunks;
  bool is_found;
  uint8_t *value;      /* Value of an attribute. */
  int64_t content_max; /* Files with more bytes are not read. */
  size_t content_length;
  uint8_t *content;
  struct timespec changed; /* The ctime from before the content was read. */
};

static void release(struct task *task) {
  struct file_task *file = (struct file_task *)task;
  free(file->root);
  free(file->path);
  free(file->name);
  free_chunks(&file->chunks);
  free(file->value);
  free(file->content);
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
  if (!file->is_found) return result_nothing(env, task);
  napi_create_buffer_copy(env, (size_t)file->length, file->value, NULL, &value);
  return value;
}

static void set_content(napi_env env, napi_value object, const struct file_task *file) {
  napi_value content, changed;
  int64_t changed_ns = file->changed.tv_sec * 1000000000LL + file->changed.tv_nsec;
  napi_create_buffer_copy(env, file->content_length, file->content, NULL, &content);
  napi_create_bigint_int64(env, changed_ns, &changed);
  napi_set_named_property(env, object, "content", content);
  napi_set_named_property(env, object, "changedNs", changed);
}

static napi_value result_object(napi_env env, struct task *task) {
  struct file_task *file = (struct file_task *)task;
  napi_value value;
  napi_create_object(env, &value);
  napi_set_named_property(env, value, "fd", result_fd(env, task));
  if (file->is_found) napi_set_named_property(env, value, "attribute", result_attribute(env, task));
  if (file->content != NULL) set_content(env, value, file);
  return value;
}

static struct file_task *new_file_task(int (*run)(struct task *),
                                       napi_value (*result)(napi_env, struct task *)) {
  struct file_task *file = calloc(1, sizeof *file);
  if (file != NULL) file->task = (struct task){.run = run, .result = result, .release = release};
  return file;
}

/*
 * Opens by the descriptor what was found, so that it cannot be another file by now. With O_PATH the
 * descriptor itself is the result: it gives no access to the contents, so any kind of file will do.
 */
static int run_open(struct task *task) {
  struct file_task *file = (struct file_task *)task;
  struct stat found;
  char link[64];
  int error = 0, path;
  int root = open(file->root, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) return EIO;
  close(root);
  path = open_beneath(file->root, file->path, file->flags & (O_DIRECTORY | O_NOFOLLOW));
  if (path < 0) return errno;
  if ((file->flags & O_PATH) != 0) {
    file->fd = path;
    return 0;
  }
  snprintf(link, sizeof link, "/proc/self/fd/%d", path);
  if (fstat(path, &found) != 0)
    error = errno;
  else if (S_ISDIR(found.st_mode) && (file->flags & O_DIRECTORY) == 0)
    error = EISDIR;
  else if (!S_ISDIR(found.st_mode) && !S_ISREG(found.st_mode))
    error = ENXIO;
  else {
    int flags = (file->flags & ~O_NOFOLLOW) | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
    if ((file->fd = open(link, flags)) < 0) error = errno;
  }
  close(path);
  return error;
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
  uint8_t value[ATTRIBUTE_BYTES_MAX];
  ssize_t length = fgetxattr(file->fd, file->name, value, sizeof value);
  bool is_large = length < 0 && errno == ERANGE;
  if (length < 0 && !is_large) return errno == ENODATA || errno == ENOTSUP ? 0 : errno;
  if ((file->value = malloc(is_large ? XATTR_SIZE_MAX : (size_t)length + 1)) == NULL) return ENOMEM;
  if (is_large)
    length = fgetxattr(file->fd, file->name, file->value, XATTR_SIZE_MAX);
  else
    memcpy(file->value, value, (size_t)length);
  if (length < 0) return errno == ENODATA ? 0 : errno;
  file->is_found = true;
  file->length = length;
  return 0;
}

/*
 * Whether a change from now on leaves another ctime: the kernel's clock for it may move only with
 * its timer (settled-file.ts).
 */
static bool is_settled(const struct stat *found) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (now.tv_sec - found->st_ctim.tv_sec) * 1000000000LL + now.tv_nsec -
             found->st_ctim.tv_nsec >=
         TICK_NS;
}

/* Leaves the content NULL when it cannot be read whole: whoever reads it next learns why. */
static int read_content(struct file_task *file) {
  struct stat found;
  uint8_t *content;
  size_t length = 0;
  if (file->content_max == 0) return 0;
  if (fstat(file->fd, &found) != 0) return errno;
  if (!S_ISREG(found.st_mode) || found.st_size > file->content_max) return 0;
  if (!is_settled(&found)) return 0;
  if ((content = malloc((size_t)found.st_size + 1)) == NULL) return ENOMEM;
  while (length < (size_t)found.st_size) {
    size_t left = (size_t)found.st_size - length;
    ssize_t count = pread(file->fd, content + length, left, (off_t)length);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    length += (size_t)count;
  }
  if (length < (size_t)found.st_size) {
    free(content);
    return 0;
  }
  file->content = content;
  file->content_length = length;
  file->changed = found.st_ctim;
  return 0;
}

static int run_open_object(struct task *task) {
  struct file_task *file = (struct file_task *)task;
  int error = run_open(task);
  if (error != 0) return error;
  error = run_get_attribute(task);
  if (error == 0) error = read_content(file);
  if (error != 0) close(file->fd);
  return error;
}

static int run_set_attribute(struct task *task) {
  struct file_task *file = (struct file_task *)task;
  return fsetxattr(file->fd, file->name, file->value, (size_t)file->length, 0) == 0 ? 0 : errno;
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

static napi_value js_open_object(napi_env env, napi_callback_info info) {
  napi_value args[5];
  struct file_task *file = new_file_task(run_open_object, result_object);
  if (file == NULL || !read_arguments(env, info, 5, args) ||
      (file->root = copy_text(env, args[0])) == NULL ||
      (file->path = copy_text(env, args[1])) == NULL || !read_int32(env, args[2], &file->flags) ||
      (file->name = copy_text(env, args[3])) == NULL ||
      !read_size(env, args[4], &file->content_max))
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

void define_file_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"openBeneath", NULL, js_open_beneath, NULL, NULL, NULL, napi_enumerable, NULL},
      {"openObject", NULL, js_open_object, NULL, NULL, NULL, napi_enumerable, NULL},
      {"write", NULL, js_write, NULL, NULL, NULL, napi_enumerable, NULL},
      {"writeBack", NULL, js_write_back, NULL, NULL, NULL, napi_enumerable, NULL},
      {"copyRange", NULL, js_copy_range, NULL, NULL, NULL, napi_enumerable, NULL},
      {"getAttribute", NULL, js_get_attribute, NULL, NULL, NULL, napi_enumerable, NULL},
      {"setAttribute", NULL, js_set_attribute, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
