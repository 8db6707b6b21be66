/*
 * Objects, as part of the addon.
 *
 *   openObject(root, path, flags, name, contentMax) -> Promise<Buffer>
 *     Everything that an answer needs of a file, in one turn on a thread: opens it (openBeneath in
 *     files.c), and reads its attribute `name` and its status. A regular file of up to `contentMax`
 *     bytes is also read whole and closed again, unless its content could have changed meanwhile
 *     without another status.
 *     The buffer begins with `struct object_head`; the attribute and the content follow.
 *     agent/edge/s3/store/opened-object.ts reads it.
 */
#define _GNU_SOURCE
#include "object.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../common/beneath.h"
#include "attribute.h"
#include "task.h"

enum { TICK_NS = 11000000 };

struct object_head {
  int64_t inode, size_bytes, mtime_ns, ctime_ns;
  uint32_t mode, uid, gid;
  int32_t fd;               /* -1: the content follows, and the file is closed. */
  int64_t attribute_length; /* Or ATTRIBUTE_ABSENT. */
};
_Static_assert(sizeof(struct object_head) == 56, "opened-object.ts has the same layout");

struct object_task {
  struct task task;
  char *root, *path, *name;
  int flags;
  int64_t content_max;
  size_t length;
  uint8_t *opened;
};

static void release(struct task *task) {
  struct object_task *object = (struct object_task *)task;
  free(object->root);
  free(object->path);
  free(object->name);
  free(object->opened);
}

static napi_value result_opened(napi_env env, struct task *task) {
  const struct object_task *object = (struct object_task *)task;
  napi_value value;
  napi_create_buffer_copy(env, object->length, object->opened, NULL, &value);
  return value;
}

static int64_t nanoseconds(const struct timespec *time) {
  return time->tv_sec * INT64_C(1000000000) + time->tv_nsec;
}

/*
 * Whether a change from now on leaves another ctime: the kernel's clock for it may move only with
 * its timer (settled-file.ts).
 */
static bool is_settled(const struct stat *found) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return nanoseconds(&now) - nanoseconds(&found->st_ctim) >= TICK_NS;
}

/* Reads this many bytes from the start; false when there are fewer, or they cannot be read. */
static bool read_whole(int fd, uint8_t *into, size_t length) {
  size_t filled = 0;
  while (filled < length) {
    ssize_t count = pread(fd, into + filled, length - filled, (off_t)filled);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    filled += (size_t)count;
  }
  return true;
}

static void describe(struct object_head *head, const struct stat *found) {
  head->inode = (int64_t)found->st_ino;
  head->size_bytes = found->st_size;
  head->mtime_ns = nanoseconds(&found->st_mtim);
  head->ctime_ns = nanoseconds(&found->st_ctim);
  head->mode = found->st_mode;
  head->uid = found->st_uid;
  head->gid = found->st_gid;
}

/*
 * Completes what was opened. The file is read only when its status from before was settled, and the
 * content counts only when it still has the same ctime then.
 */
static int complete(struct object_task *object, int fd, const struct stat *before,
                    const uint8_t *attribute, ssize_t attribute_length) {
  struct object_head head = {.fd = fd, .attribute_length = attribute_length};
  size_t attribute_bytes = attribute_length > 0 ? (size_t)attribute_length : 0;
  size_t content = sizeof head + attribute_bytes, size = (size_t)before->st_size;
  bool is_wanted = object->content_max > 0 && S_ISREG(before->st_mode) &&
                   before->st_size <= object->content_max && is_settled(before);
  struct stat after;
  if ((object->opened = malloc(content + (is_wanted ? size : 0))) == NULL) return ENOMEM;
  bool is_read = is_wanted && read_whole(fd, object->opened + content, size);
  if (fstat(fd, &after) != 0) return errno;
  is_read = is_read && nanoseconds(&after.st_ctim) == nanoseconds(&before->st_ctim);
  if (is_read) head.fd = -1;
  describe(&head, &after);
  memcpy(object->opened, &head, sizeof head);
  if (attribute_bytes > 0) memcpy(object->opened + sizeof head, attribute, attribute_bytes);
  object->length = content + (is_read ? size : 0);
  if (is_read) close(fd);
  return 0;
}

static int run_open(struct task *task) {
  struct object_task *object = (struct object_task *)task;
  struct stat before;
  uint8_t *attribute = NULL;
  int fd = open_file_beneath(object->root, object->path, object->flags, &before);
  if (fd < 0) return errno;
  ssize_t length = read_attribute(fd, object->name, &attribute);
  int error = length < ATTRIBUTE_ABSENT ? errno : complete(object, fd, &before, attribute, length);
  free(attribute);
  if (error != 0) close(fd);
  return error;
}

static napi_value js_open_object(napi_env env, napi_callback_info info) {
  napi_value args[5];
  struct object_task *object = calloc(1, sizeof *object);
  if (object == NULL) return refuse_task(env, NULL);
  object->task = (struct task){.run = run_open, .result = result_opened, .release = release};
  if (!read_arguments(env, info, 5, args) || (object->root = copy_text(env, args[0])) == NULL ||
      (object->path = copy_text(env, args[1])) == NULL ||
      napi_get_value_int32(env, args[2], &object->flags) != napi_ok ||
      (object->flags & O_PATH) != 0 || (object->name = copy_text(env, args[3])) == NULL ||
      napi_get_value_int64(env, args[4], &object->content_max) != napi_ok ||
      object->content_max < 0)
    return refuse_task(env, &object->task);
  return start_task(env, &object->task, "openat2", NULL);
}

void define_object_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"openObject", NULL, js_open_object, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
