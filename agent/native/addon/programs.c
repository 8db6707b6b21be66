/*
 * Starting programs, as part of the addon. Node's own spawn copies the page tables of the agent and
 * stops its main thread until the program runs, 8 ms for an agent of 180 MiB.
 *
 *   spawn(path, args, environment, descriptors) -> Promise<number>
 *     Starts the program in a session of its own, from a thread that lives as long as the agent
 *     (spawner.c). It gets the descriptors from 0 on, /dev/null for -1. The first argument is its
 *     name. Resolves with the process id, which stays the program's until `reap` has told of its
 *     end. posix_spawn(3).
 *   reap(pid)                                   -> number | undefined
 *     How such a program ended: its exit code, or the number of the signal that ended it, negative.
 *     Undefined while it runs. waitpid(2).
 */
#define _GNU_SOURCE
#include "programs.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "spawner.h"
#include "task.h"

enum { ARGUMENTS_MAX = 1024, ENVIRONMENT_MAX = 1024 };
/* The longest argument that the kernel takes (MAX_ARG_STRLEN). */
enum { ARGUMENT_BYTES_MAX = 128 * 1024 - 1 };

struct spawn_task {
  struct task task;
  struct spawn spawn;
  char *args[ARGUMENTS_MAX + 1];
  char *environment[ENVIRONMENT_MAX + 1];
  pid_t pid;
};

static int run_spawn(struct task *task) {
  struct spawn_task *work = (struct spawn_task *)task;
  work->spawn.args = work->args;
  work->spawn.environment = work->environment;
  return spawn_program(&work->spawn, &work->pid);
}

static napi_value result_pid(napi_env env, struct task *task) {
  napi_value result;
  napi_create_int32(env, ((struct spawn_task *)task)->pid, &result);
  return result;
}

static void release(struct task *task) {
  struct spawn_task *work = (struct spawn_task *)task;
  free(work->spawn.path);
  for (uint32_t i = 0; i < ARGUMENTS_MAX; i++) free(work->args[i]);
  for (uint32_t i = 0; i < ENVIRONMENT_MAX; i++) free(work->environment[i]);
}

/* False when the value is no array of at most `max` elements. */
static bool read_length(napi_env env, napi_value array, uint32_t max, uint32_t *length) {
  bool is_array = false;
  napi_is_array(env, array, &is_array);
  return is_array && napi_get_array_length(env, array, length) == napi_ok && *length <= max;
}

static bool read_texts(napi_env env, napi_value array, uint32_t max, char **into) {
  uint32_t count;
  napi_value element;
  if (!read_length(env, array, max, &count)) return false;
  for (uint32_t i = 0; i < count; i++) {
    if (napi_get_element(env, array, i, &element) != napi_ok) return false;
    into[i] = copy_text_up_to(env, element, ARGUMENT_BYTES_MAX);
    if (into[i] == NULL) return false;
  }
  return true;
}

static bool read_descriptors(napi_env env, napi_value descriptors, struct spawn_task *work) {
  napi_value element;
  if (!read_length(env, descriptors, SPAWN_DESCRIPTORS_MAX, &work->spawn.descriptor_count))
    return false;
  for (uint32_t i = 0; i < work->spawn.descriptor_count; i++) {
    if (napi_get_element(env, descriptors, i, &element) != napi_ok ||
        napi_get_value_int32(env, element, &work->spawn.descriptors[i]) != napi_ok)
      return false;
  }
  return true;
}

static napi_value js_spawn(napi_env env, napi_callback_info info) {
  napi_value args[4];
  struct spawn_task *work = calloc(1, sizeof *work);
  if (work != NULL)
    work->task = (struct task){.run = run_spawn, .result = result_pid, .release = release};
  if (work == NULL || !read_arguments(env, info, 4, args) ||
      (work->spawn.path = copy_text(env, args[0])) == NULL ||
      !read_texts(env, args[1], ARGUMENTS_MAX, work->args) ||
      !read_texts(env, args[2], ENVIRONMENT_MAX, work->environment) ||
      !read_descriptors(env, args[3], work))
    return refuse_task(env, &work->task);
  return start_task(env, &work->task, "spawn", NULL);
}

static napi_value js_reap(napi_env env, napi_callback_info info) {
  napi_value args[1], result;
  int32_t pid;
  int status;
  if (!read_arguments(env, info, 1, args) || napi_get_value_int32(env, args[0], &pid) != napi_ok ||
      pid <= 0)
    return refuse_task(env, NULL);
  pid_t ended = waitpid(pid, &status, WNOHANG);
  if (ended < 0) {
    napi_throw(env, make_error(env, errno, "waitpid"));
    return NULL;
  }
  if (ended == 0) return result_nothing(env, NULL);
  napi_create_int32(env, WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status), &result);
  return result;
}

void define_spawn_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"spawn", NULL, js_spawn, NULL, NULL, NULL, napi_enumerable, NULL},
      {"reap", NULL, js_reap, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
