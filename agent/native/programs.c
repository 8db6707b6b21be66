/*
 * Starting programs, as part of the addon. Node's own spawn copies the page tables of the agent and
 * stops its main thread until the program runs, 8 ms for an agent of 180 MiB.
 *
 *   spawn(path, args, descriptors) -> Promise<number>
 *     Starts the program with an empty environment in a session of its own, from a thread that
 *     lives as long as the agent (PR_SET_PDEATHSIG goes by threads). /dev/null is its stdin,
 *     stdout and stderr; the descriptors follow, from 3 on. The first argument is its name.
 *     Resolves with the process id, which stays the program's until `reap` has told of its end.
 *     posix_spawn(3).
 *   reap(pid)                      -> number | undefined
 *     How such a program ended: its exit code, or the number of the signal that ended it, negative.
 *     Undefined while it runs. waitpid(2).
 */
#define _GNU_SOURCE
#include "programs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "task.h"

enum { ARGUMENTS_MAX = 64, DESCRIPTORS_MAX = 16, FIRST_DESCRIPTOR = 3 };

struct spawn_task {
  struct task task;
  char *path;
  char *args[ARGUMENTS_MAX + 1];
  int descriptors[DESCRIPTORS_MAX];
  uint32_t descriptor_count;
  pid_t pid;
};

/* Copies the descriptors out of the way of their places in the program. */
static int copy_descriptors(const struct spawn_task *work, int *copies) {
  for (uint32_t i = 0; i < work->descriptor_count; i++) {
    int above = FIRST_DESCRIPTOR + DESCRIPTORS_MAX;
    copies[i] = fcntl(work->descriptors[i], F_DUPFD_CLOEXEC, above);
    if (copies[i] < 0) return errno;
  }
  return 0;
}

static int place_descriptors(const struct spawn_task *work, const int *copies,
                             posix_spawn_file_actions_t *actions) {
  int error = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDWR, 0);
  for (int fd = STDOUT_FILENO; error == 0 && fd <= STDERR_FILENO; fd++)
    error = posix_spawn_file_actions_adddup2(actions, STDIN_FILENO, fd);
  for (uint32_t i = 0; error == 0 && i < work->descriptor_count; i++)
    error = posix_spawn_file_actions_adddup2(actions, copies[i], FIRST_DESCRIPTOR + (int)i);
  return error;
}

static int start(struct spawn_task *work, const posix_spawn_file_actions_t *actions) {
  posix_spawnattr_t attributes;
  sigset_t all, none;
  char *environment[] = {NULL};
  int error = posix_spawnattr_init(&attributes);
  if (error != 0) return error;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
  error = posix_spawn(&work->pid, work->path, actions, &attributes, work->args, environment);
  posix_spawnattr_destroy(&attributes);
  return error;
}

static int run_spawn(struct task *task) {
  struct spawn_task *work = (struct spawn_task *)task;
  posix_spawn_file_actions_t actions;
  int copies[DESCRIPTORS_MAX];
  for (uint32_t i = 0; i < DESCRIPTORS_MAX; i++) copies[i] = -1;
  int error = posix_spawn_file_actions_init(&actions);
  if (error != 0) return error;
  error = copy_descriptors(work, copies);
  if (error == 0) error = place_descriptors(work, copies, &actions);
  if (error == 0) error = start(work, &actions);
  for (uint32_t i = 0; i < DESCRIPTORS_MAX; i++)
    if (copies[i] >= 0) close(copies[i]);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

static napi_value result_pid(napi_env env, struct task *task) {
  napi_value result;
  napi_create_int32(env, ((struct spawn_task *)task)->pid, &result);
  return result;
}

static void release(struct task *task) {
  struct spawn_task *work = (struct spawn_task *)task;
  free(work->path);
  for (uint32_t i = 0; i < ARGUMENTS_MAX; i++) free(work->args[i]);
}

/* False when the value is no array of at most `max` elements. */
static bool read_length(napi_env env, napi_value array, uint32_t max, uint32_t *length) {
  bool is_array = false;
  napi_is_array(env, array, &is_array);
  return is_array && napi_get_array_length(env, array, length) == napi_ok && *length <= max;
}

static bool read_spawn_arguments(napi_env env, napi_value args, napi_value descriptors,
                                 struct spawn_task *work) {
  uint32_t count;
  napi_value element;
  if (!read_length(env, args, ARGUMENTS_MAX, &count)) return false;
  for (uint32_t i = 0; i < count; i++) {
    if (napi_get_element(env, args, i, &element) != napi_ok) return false;
    work->args[i] = copy_text(env, element);
    if (work->args[i] == NULL) return false;
  }
  if (!read_length(env, descriptors, DESCRIPTORS_MAX, &work->descriptor_count)) return false;
  for (uint32_t i = 0; i < work->descriptor_count; i++) {
    if (napi_get_element(env, descriptors, i, &element) != napi_ok ||
        napi_get_value_int32(env, element, &work->descriptors[i]) != napi_ok)
      return false;
  }
  return true;
}

static napi_value js_spawn(napi_env env, napi_callback_info info) {
  napi_value args[3];
  struct spawn_task *work = calloc(1, sizeof *work);
  if (work != NULL)
    work->task = (struct task){.run = run_spawn, .result = result_pid, .release = release};
  if (work == NULL || !read_arguments(env, info, 3, args) ||
      (work->path = copy_text(env, args[0])) == NULL ||
      !read_spawn_arguments(env, args[1], args[2], work))
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
