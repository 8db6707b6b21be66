/*
 * Mounts and pipes, as part of the addon.
 *
 *   mount(source, target, type, flags, data) -> Promise<void>      mount(2)
 *   unmount(target, flags)                   -> Promise<void>      umount2(2)
 *   attach(disk, subdirectory, target, attributes, userNamespace) -> Promise<void>
 *     Mounts a directory of a mounted disk at another place, with these MOUNT_ATTR_* and always
 *     nosuid and nodev. For a container, `userNamespace` is the descriptor of its user namespace,
 *     so that owners are the same inside as on the disk; otherwise it is -1. `subdirectory` is
 *     resolved beneath the disk (openat2(2), RESOLVE_BENEATH): no link and no `..` leads out of it.
 *     detached-tree.h, move_mount(2).
 *   pipe()                                   -> [readFd, writeFd]  pipe2(2), close-on-exec
 *   socketPair()                             -> [fd, fd]  socketpair(2), streams, close-on-exec
 *   unreadBytes(fd)                          -> number             FIONREAD of pipe(7)
 */
#define _GNU_SOURCE
#include "mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../common/beneath.h"
#include "../common/detached-tree.h"
#include "task.h"

struct mount_task {
  struct task task;
  char *source, *target, *type;
  char *data; /* Options of the file system, or a path beneath the source. */
  uint32_t flags;
  int user_namespace;
};

static int run_mount(struct task *task) {
  struct mount_task *work = (struct mount_task *)task;
  return mount(work->source, work->target, work->type, work->flags, work->data) == 0 ? 0 : errno;
}

static int run_unmount(struct task *task) {
  struct mount_task *work = (struct mount_task *)task;
  return umount2(work->target, (int)work->flags) == 0 ? 0 : errno;
}

static int run_attach(struct task *task) {
  struct mount_task *work = (struct mount_task *)task;
  int error = 0, tree = -1;
  int found = open_beneath(work->source, work->data, O_DIRECTORY);
  if (found < 0) return errno;
  uint64_t attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | work->flags;
  tree = clone_tree(found, "", attributes, work->user_namespace);
  if (tree < 0 || move_mount(tree, "", AT_FDCWD, work->target, MOVE_MOUNT_F_EMPTY_PATH) != 0)
    error = errno;
  if (tree >= 0) close(tree);
  close(found);
  return error;
}

static void release(struct task *task) {
  struct mount_task *work = (struct mount_task *)task;
  free(work->source);
  free(work->target);
  free(work->type);
  free(work->data);
}

static struct mount_task *new_mount_task(int (*run)(struct task *)) {
  struct mount_task *work = calloc(1, sizeof *work);
  if (work != NULL)
    work->task = (struct task){.run = run, .result = result_nothing, .release = release};
  return work;
}

static bool read_text(napi_env env, napi_value value, char **into) {
  return (*into = copy_text(env, value)) != NULL;
}

static bool read_flags(napi_env env, napi_value value, uint32_t *into) {
  return napi_get_value_uint32(env, value, into) == napi_ok;
}

static napi_value js_mount(napi_env env, napi_callback_info info) {
  napi_value args[5];
  struct mount_task *work = new_mount_task(run_mount);
  if (work == NULL || !read_arguments(env, info, 5, args) ||
      !read_text(env, args[0], &work->source) || !read_text(env, args[1], &work->target) ||
      !read_text(env, args[2], &work->type) || !read_flags(env, args[3], &work->flags) ||
      !read_text(env, args[4], &work->data))
    return refuse_task(env, &work->task);
  return start_task(env, &work->task, "mount", NULL);
}

static napi_value js_unmount(napi_env env, napi_callback_info info) {
  napi_value args[2];
  struct mount_task *work = new_mount_task(run_unmount);
  if (work == NULL || !read_arguments(env, info, 2, args) ||
      !read_text(env, args[0], &work->target) || !read_flags(env, args[1], &work->flags))
    return refuse_task(env, &work->task);
  return start_task(env, &work->task, "umount", NULL);
}

static napi_value js_attach(napi_env env, napi_callback_info info) {
  napi_value args[5];
  struct mount_task *work = new_mount_task(run_attach);
  if (work == NULL || !read_arguments(env, info, 5, args) ||
      !read_text(env, args[0], &work->source) || !read_text(env, args[1], &work->data) ||
      !read_text(env, args[2], &work->target) || !read_flags(env, args[3], &work->flags) ||
      napi_get_value_int32(env, args[4], &work->user_namespace) != napi_ok)
    return refuse_task(env, &work->task);
  return start_task(env, &work->task, "attach", NULL);
}

/* Both ends as an array; throws when they could not be made. */
static napi_value result_pair(napi_env env, int outcome, const int ends[2], const char *call) {
  napi_value result;
  if (outcome != 0) {
    napi_throw(env, make_error(env, errno, call));
    return NULL;
  }
  napi_create_array_with_length(env, 2, &result);
  for (uint32_t i = 0; i < 2; i++) {
    napi_value end;
    napi_create_int32(env, ends[i], &end);
    napi_set_element(env, result, i, end);
  }
  return result;
}

static napi_value js_pipe(napi_env env, napi_callback_info info) {
  int ends[2];
  (void)info;
  int outcome = pipe2(ends, O_CLOEXEC);
  return result_pair(env, outcome, ends, "pipe2");
}

static napi_value js_socket_pair(napi_env env, napi_callback_info info) {
  int ends[2];
  (void)info;
  int outcome = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
  return result_pair(env, outcome, ends, "socketpair");
}

static napi_value js_unread_bytes(napi_env env, napi_callback_info info) {
  napi_value args[1], result;
  size_t count = 1;
  int32_t fd;
  int bytes = 0;
  napi_get_cb_info(env, info, &count, args, NULL, NULL);
  if (count != 1 || napi_get_value_int32(env, args[0], &fd) != napi_ok)
    return refuse_task(env, NULL);
  if (ioctl(fd, FIONREAD, &bytes) != 0) {
    napi_throw(env, make_error(env, errno, "ioctl"));
    return NULL;
  }
  napi_create_int32(env, bytes, &result);
  return result;
}

void define_mount_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"mount", NULL, js_mount, NULL, NULL, NULL, napi_enumerable, NULL},
      {"unmount", NULL, js_unmount, NULL, NULL, NULL, napi_enumerable, NULL},
      {"attach", NULL, js_attach, NULL, NULL, NULL, napi_enumerable, NULL},
      {"unreadBytes", NULL, js_unread_bytes, NULL, NULL, NULL, napi_enumerable, NULL},
      {"pipe", NULL, js_pipe, NULL, NULL, NULL, napi_enumerable, NULL},
      {"socketPair", NULL, js_socket_pair, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
