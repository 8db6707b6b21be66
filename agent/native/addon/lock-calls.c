/*
 * Locks of directories, as part of the addon.
 *
 *   takeLock(path) -> Promise<number>    a descriptor; closing it ends the lock (lock.h)
 *     EWOULDBLOCK: somebody else holds it; ESTALE: the path names another file by now.
 */
#include "lock-calls.h"

#include <errno.h>
#include <stdlib.h>

#include "../common/lock.h"
#include "task.h"

struct lock_task {
  struct task task;
  char *path;
  int fd;
};

static int run_take(struct task *task) {
  struct lock_task *lock = (struct lock_task *)task;
  lock->fd = take_lock(lock->path);
  return lock->fd < 0 ? errno : 0;
}

static napi_value result_fd(napi_env env, struct task *task) {
  napi_value value;
  napi_create_int32(env, ((struct lock_task *)task)->fd, &value);
  return value;
}

static void release(struct task *task) { free(((struct lock_task *)task)->path); }

static napi_value js_take_lock(napi_env env, napi_callback_info info) {
  napi_value args[1];
  struct lock_task *lock = calloc(1, sizeof *lock);
  if (lock == NULL) return refuse_task(env, NULL);
  lock->task = (struct task){.run = run_take, .result = result_fd, .release = release};
  if (!read_arguments(env, info, 1, args) || (lock->path = copy_text(env, args[0])) == NULL)
    return refuse_task(env, &lock->task);
  return start_task(env, &lock->task, "takeLock", NULL);
}

void define_lock_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"takeLock", NULL, js_take_lock, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
