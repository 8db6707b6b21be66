/*
 * Host-side preparation of a container, before runc starts it, as part of the addon.
 *
 *   newUserNamespace(owner, mapping) -> Promise<number>
 *     A descriptor of a new user namespace, close-on-exec, with this mapping of users and groups
 *     (the lines of uid_map in user_namespaces(7)). The namespace belongs to this user of the host,
 *     because the kernel charges limits to the owner: namespaces of root would share root's limits.
 *     It lasts as long as the descriptor or a process in it.
 *   setHostname(pid, name) -> Promise<void>
 *     Sets the host name of the container that this process runs in.
 *   makeDevices(directory, owner) -> Promise<void>
 *     Makes the device nodes, links, and mount points of a container's /dev, owned by this user and
 *     group.
 *
 * Only a single-threaded process can unshare(2) a user namespace, and a fork of the agent would
 * copy its page tables. So a process that shares the agent's memory is cloned into the new
 * namespace, and killed once the namespace has its mapping and its descriptor. If the agent is
 * killed before that, the process reads end of file from its pipe and ends.
 */
#define _GNU_SOURCE
#include "container.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/securebits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common/device-nodes.h"
#include "task.h"

enum { HOLDER_STACK_BYTES = 16 * 1024, PATH_BYTES = 64 };

struct container_task {
  struct task task;
  char *directory, *mapping; /* A name instead of a mapping, with a process instead of an owner. */
  uint32_t owner;            /* Owner of the namespace, or of the devices. */
  int found;
};

/*
 * Serialises the making of namespaces, since the stack is shared, and so is the dumpable flag of
 * the memory.
 */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
static _Alignas(16) char holder_stack[HOLDER_STACK_BYTES];

/*
 * Runs in the memory of the thread that waits for it. It only makes system calls that cannot fail,
 * because errno belongs to that thread.
 */
static int hold_namespace(void *argument) {
  char byte;
  /* Closes the agent's sockets and locks, which this process must not keep open. */
  if (syscall(SYS_dup3, *(const int *)argument, STDIN_FILENO, 0) == STDIN_FILENO &&
      syscall(SYS_close_range, STDIN_FILENO + 1, ~0U, 0) == 0)
    syscall(SYS_read, STDIN_FILENO, &byte, 1);
  syscall(SYS_exit_group, 0);
  return 0;
}

/* Changes the calling thread only, unlike the C library's functions. Capabilities stay. */
static int become(uint32_t id) {
  if (syscall(SYS_setresgid, -1, id, -1) != 0) return -1;
  return (int)syscall(SYS_setresuid, -1, id, -1);
}

static int write_mapping(pid_t pid, const char *file, const char *mapping) {
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t written = write(fd, mapping, strlen(mapping));
  int error = errno;
  close(fd);
  errno = error;
  return written == (ssize_t)strlen(mapping) ? 0 : -1;
}

static int open_namespace(pid_t pid, const char *mapping) {
  char path[PATH_BYTES];
  if (write_mapping(pid, "uid_map", mapping) != 0) return -1;
  if (write_mapping(pid, "gid_map", mapping) != 0) return -1;
  snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
  return open(path, O_RDONLY | O_CLOEXEC);
}

/* A thread of its own, so that no other work runs as this user even if changing back fails. */
static void *make_namespace(void *argument) {
  struct container_task *work = argument;
  int ends[2], dumpable = prctl(PR_GET_DUMPABLE);
  pid_t pid = -1;
  work->found = -1;
  if (pipe2(ends, O_CLOEXEC) != 0) {
    work->task.error = errno;
    return NULL;
  }
  if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) == 0 && become(work->owner) == 0)
    pid = clone(hold_namespace, holder_stack + sizeof holder_stack, CLONE_NEWUSER | CLONE_VM, ends);
  work->task.error = pid < 0 ? errno : 0;
  if (become(0) != 0) work->task.error = errno;
  /* The change of user made the whole agent non-dumpable, and /proc/<agent> root's. */
  prctl(PR_SET_DUMPABLE, dumpable);
  if (work->task.error == 0) {
    work->found = open_namespace(pid, work->mapping);
    if (work->found < 0) work->task.error = errno;
  }
  close(ends[1]);
  close(ends[0]);
  if (pid > 0) {
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
      ;
  }
  return NULL;
}

static int run_new_namespace(struct task *task) {
  pthread_t thread;
  sigset_t all, before;
  /* setresuid(2) takes it as "unchanged": the namespace would belong to root. */
  if (((struct container_task *)task)->owner == UINT32_MAX) return EINVAL;
  /* With all signals blocked, the cloned process runs none of the agent's handlers. */
  sigfillset(&all);
  pthread_mutex_lock(&making);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&thread, NULL, make_namespace, task);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error == 0) pthread_join(thread, NULL);
  pthread_mutex_unlock(&making);
  return error != 0 ? error : task->error;
}

static napi_value result_descriptor(napi_env env, struct task *task) {
  napi_value value;
  napi_create_int32(env, ((struct container_task *)task)->found, &value);
  return value;
}

/* In a thread of its own, which is all that enters the container's namespace. */
static void *set_hostname(void *argument) {
  struct container_task *work = argument;
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "/proc/%u/ns/uts", work->owner);
  int namespace = open(path, O_RDONLY | O_CLOEXEC);
  bool done = namespace >= 0 && setns(namespace, CLONE_NEWUTS) == 0 &&
              sethostname(work->mapping, strlen(work->mapping)) == 0;
  work->task.error = done ? 0 : errno;
  if (namespace >= 0) close(namespace);
  return NULL;
}

static int run_set_hostname(struct task *task) {
  pthread_t thread;
  int error = pthread_create(&thread, NULL, set_hostname, task);
  if (error == 0) pthread_join(thread, NULL);
  return error != 0 ? error : task->error;
}

static int run_make_devices(struct task *task) {
  struct container_task *work = (struct container_task *)task;
  int directory = open(work->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return errno;
  int error = fill_devices(directory, work->owner) == 0 ? 0 : errno;
  close(directory);
  return error;
}

static void release(struct task *task) {
  struct container_task *work = (struct container_task *)task;
  free(work->directory);
  free(work->mapping);
}

static struct container_task *new_container_task(int (*run)(struct task *),
                                                 napi_value (*result)(napi_env, struct task *)) {
  struct container_task *work = calloc(1, sizeof *work);
  if (work != NULL) work->task = (struct task){.run = run, .result = result, .release = release};
  return work;
}

static napi_value js_new_user_namespace(napi_env env, napi_callback_info info) {
  napi_value args[2];
  struct container_task *work = new_container_task(run_new_namespace, result_descriptor);
  if (work == NULL || !read_arguments(env, info, 2, args) ||
      napi_get_value_uint32(env, args[0], &work->owner) != napi_ok ||
      (work->mapping = copy_text(env, args[1])) == NULL)
    return refuse_task(env, &work->task);
  return start_task(env, &work->task, "newUserNamespace", NULL);
}

static napi_value js_set_hostname(napi_env env, napi_callback_info info) {
  napi_value args[2];
  struct container_task *work = new_container_task(run_set_hostname, result_nothing);
  if (work == NULL || !read_arguments(env, info, 2, args) ||
      napi_get_value_uint32(env, args[0], &work->owner) != napi_ok ||
      (work->mapping = copy_text(env, args[1])) == NULL)
    return refuse_task(env, &work->task);
  return start_task(env, &work->task, "setHostname", NULL);
}

static napi_value js_make_devices(napi_env env, napi_callback_info info) {
  napi_value args[2];
  struct container_task *work = new_container_task(run_make_devices, result_nothing);
  if (work == NULL || !read_arguments(env, info, 2, args) ||
      (work->directory = copy_text(env, args[0])) == NULL ||
      napi_get_value_uint32(env, args[1], &work->owner) != napi_ok)
    return refuse_task(env, &work->task);
  return start_task(env, &work->task, "makeDevices", NULL);
}

void define_container_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"newUserNamespace", NULL, js_new_user_namespace, NULL, NULL, NULL, napi_enumerable, NULL},
      {"setHostname", NULL, js_set_hostname, NULL, NULL, NULL, napi_enumerable, NULL},
      {"makeDevices", NULL, js_make_devices, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
