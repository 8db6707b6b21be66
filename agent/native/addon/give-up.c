/*
 * Giving up the contents of files that object storage has as well, as part of the addon.
 *
 *   giveUpContents(fd, name, mtime, ctime, group) -> Promise<boolean>
 *     Makes a file a placeholder again, with its size and times, but only if its times are those
 *     given (nanoseconds) and nobody else has it open. `fd` is open for writing; `name` is the
 *     attribute that marks placeholders. Its value is `leaving` until it is certain that nobody
 *     else has the file open: one with this value has its contents. `group` is the fanotify group
 *     that watches opens.
 *
 *   isOpenElsewhere(fd) -> Promise<boolean>
 *     Whether the file is open, or mapped, through any other descriptor.
 *
 *   punch(fd, length) -> Promise<void>
 *     Frees what is below the length (fallocate(2)); the size of the file stays.
 *
 * The kernel grants a write lease only while nobody else has the file open; opens in progress count
 * (fcntl(2)). Later opens wait until the lease ends, but some of them may have passed already, as
 * opens of a file that is no placeholder. So the lease is requested again once the file has the
 * attribute: a refusal shows such opens, and the file stays as it is. After the grant the helper
 * finds the attribute in every open that it is asked about, and exempts no further opens of the
 * file (hydrate-opens.c), so the exemption in force can be removed for good. Opens before that
 * removal went unasked, so the lease is requested a third time.
 */
#define _GNU_SOURCE
#include "give-up.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "task.h"

struct give_up {
  struct task task;
  int fd, group;
  char *name;
  int64_t mtime, ctime, length;
  bool is_given_up, is_shared;
};

static int64_t nanoseconds(struct timespec time) {
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int mark(const struct give_up *file, const char *value) {
  return fsetxattr(file->fd, file->name, value, strlen(value), 0) == 0 ? 0 : errno;
}

static bool is_alone(const struct give_up *file) {
  return fcntl(file->fd, F_SETLEASE, F_WRLCK) == 0;
}

/* From now on the helper is asked about every open of the file. */
static bool watch_opens(const struct give_up *file) {
  unsigned flags = FAN_MARK_REMOVE | FAN_MARK_IGNORED_MASK;
  return fanotify_mark(file->group, flags, FAN_OPEN_PERM, file->fd, NULL) == 0 || errno == ENOENT;
}

/* With the lease held. What fails after the second mark leaves a placeholder, which is filled. */
static int empty(struct give_up *file) {
  struct stat status;
  if (fstat(file->fd, &status) != 0) return errno;
  if (nanoseconds(status.st_mtim) != file->mtime || nanoseconds(status.st_ctim) != file->ctime)
    return 0;
  int error = mark(file, "leaving");
  if (error != 0) return error;
  if (!is_alone(file) || !watch_opens(file) || !is_alone(file)) {
    fremovexattr(file->fd, file->name);
    return 0;
  }
  error = mark(file, "1");
  if (error != 0) return error;
  const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, status.st_mtim};
  file->is_given_up = true;
  if (fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, status.st_size) != 0)
    error = errno;
  if (futimens(file->fd, times) != 0 && error == 0) error = errno;
  return error;
}

static int run_give_up(struct task *task) {
  struct give_up *file = (struct give_up *)task;
  if (!is_alone(file)) return errno == EAGAIN ? 0 : errno;
  int error = empty(file);
  fcntl(file->fd, F_SETLEASE, F_UNLCK);
  return error;
}

static int run_is_open(struct task *task) {
  struct give_up *file = (struct give_up *)task;
  if (is_alone(file)) return fcntl(file->fd, F_SETLEASE, F_UNLCK) == 0 ? 0 : errno;
  file->is_shared = errno == EAGAIN;
  return file->is_shared ? 0 : errno;
}

static int run_punch(struct task *task) {
  struct give_up *file = (struct give_up *)task;
  int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  return file->length == 0 || fallocate(file->fd, mode, 0, file->length) == 0 ? 0 : errno;
}

static napi_value result_given_up(napi_env env, struct task *task) {
  napi_value value;
  napi_get_boolean(env, ((struct give_up *)task)->is_given_up, &value);
  return value;
}

static napi_value result_shared(napi_env env, struct task *task) {
  napi_value value;
  napi_get_boolean(env, ((struct give_up *)task)->is_shared, &value);
  return value;
}

static void release_give_up(struct task *task) { free(((struct give_up *)task)->name); }

static bool read_time(napi_env env, napi_value value, int64_t *into) {
  bool is_whole;
  return napi_get_value_bigint_int64(env, value, into, &is_whole) == napi_ok && is_whole;
}

static napi_value js_give_up_contents(napi_env env, napi_callback_info info) {
  napi_value args[5];
  struct give_up *file = calloc(1, sizeof *file);
  if (file == NULL) return refuse_task(env, NULL);
  file->task =
      (struct task){.run = run_give_up, .result = result_given_up, .release = release_give_up};
  if (!read_arguments(env, info, 5, args) ||
      napi_get_value_int32(env, args[0], &file->fd) != napi_ok ||
      (file->name = copy_text(env, args[1])) == NULL || !read_time(env, args[2], &file->mtime) ||
      !read_time(env, args[3], &file->ctime) ||
      napi_get_value_int32(env, args[4], &file->group) != napi_ok)
    return refuse_task(env, &file->task);
  return start_task(env, &file->task, "giveUpContents", NULL);
}

static napi_value js_is_open_elsewhere(napi_env env, napi_callback_info info) {
  napi_value args[1];
  struct give_up *file = calloc(1, sizeof *file);
  if (file == NULL) return refuse_task(env, NULL);
  file->task = (struct task){.run = run_is_open, .result = result_shared};
  if (!read_arguments(env, info, 1, args) ||
      napi_get_value_int32(env, args[0], &file->fd) != napi_ok)
    return refuse_task(env, &file->task);
  return start_task(env, &file->task, "fcntl", NULL);
}

static napi_value js_punch(napi_env env, napi_callback_info info) {
  napi_value args[2];
  struct give_up *file = calloc(1, sizeof *file);
  if (file == NULL) return refuse_task(env, NULL);
  file->task = (struct task){.run = run_punch, .result = result_nothing};
  if (!read_arguments(env, info, 2, args) ||
      napi_get_value_int32(env, args[0], &file->fd) != napi_ok ||
      napi_get_value_int64(env, args[1], &file->length) != napi_ok || file->length < 0)
    return refuse_task(env, &file->task);
  return start_task(env, &file->task, "fallocate", NULL);
}

void define_give_up_functions(napi_env env, napi_value exports) {
  napi_property_descriptor functions[] = {
      {"giveUpContents", NULL, js_give_up_contents, NULL, NULL, NULL, napi_enumerable, NULL},
      {"isOpenElsewhere", NULL, js_is_open_elsewhere, NULL, NULL, NULL, napi_enumerable, NULL},
      {"punch", NULL, js_punch, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  signal(SIGIO, SIG_IGN); /* Tells that somebody waits for the end of a lease: it is short. */
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
