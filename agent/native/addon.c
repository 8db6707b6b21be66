/*
 * The system calls that Node lacks, as a Node-API module (nodejs.org/api/n-api.html).
 *
 *   mount(source, target, type, flags, data) -> Promise<void>      mount(2)
 *   unmount(target, flags)                   -> Promise<void>      umount2(2)
 *   attach(disk, subdirectory, target, attributes) -> Promise<void>
 *     Mounts a directory of a mounted disk somewhere else with these MOUNT_ATTR_* and always
 *     nosuid and nodev. `subdirectory` is resolved beneath the disk (openat2(2), RESOLVE_BENEATH):
 *     no link and no `..` leads out of it. open_tree(2), mount_setattr(2), move_mount(2).
 *   inode(disk, path)                        -> Promise<number>    its inode, resolved as above
 *   openFile(disk, path)                     -> Promise<number>    its descriptor, to read
 *     Resolved as above; only a regular file is ever opened: EISDIR for a directory, ENXIO for
 *     everything else, without opening it: that would let a pipe's writer go on, or move a device.
 *   pipe()                                   -> [readFd, writeFd]  pipe2(2), close-on-exec
 *   unreadBytes(fd)                          -> number             FIONREAD of pipe(7)
 *
 * Files on a disk are read and written in files.c, directories listed in listing.c.
 *
 * Mounts may block on the disk, so they run on libuv's worker threads. A promise rejects with an
 * Error whose `code` is the errno name, as Node's own file functions do.
 */
#define _GNU_SOURCE
#include "addon.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <node_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TEXT_MAX = 8192, OPEN_TRIES_MAX = 8 };

struct work {
  napi_async_work handle;
  napi_deferred deferred;
  const char *call;
  int (*run)(struct work *); /* 0, or an errno */
  uint32_t flags;
  uint64_t *result; /* what the promise resolves to; nothing when null */
  uint64_t number;
  int error;
  char source[TEXT_MAX];
  char target[TEXT_MAX];
  char type[TEXT_MAX];
  char data[TEXT_MAX];
};

napi_value make_error(napi_env env, int error, const char *call) {
  char message[256];
  napi_value code, text, result;
  snprintf(message, sizeof message, "%s: %s", call, strerror(error));
  napi_create_string_utf8(env, strerrorname_np(error), NAPI_AUTO_LENGTH, &code);
  napi_create_string_utf8(env, message, NAPI_AUTO_LENGTH, &text);
  napi_create_error(env, code, text, &result);
  return result;
}

static int run_mount(struct work *work) {
  return mount(work->source, work->target, work->type, work->flags, work->data) == 0 ? 0 : errno;
}

static int run_unmount(struct work *work) {
  return umount2(work->target, (int)work->flags) == 0 ? 0 : errno;
}

int open_beneath(const char *directory, const char *path, int flags) {
  int root = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root < 0 || path[0] == '\0') return root;
  struct open_how how = {
      .flags = (uint64_t)(O_PATH | O_CLOEXEC | flags),
      .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
  };
  int found = -1;
  /* The kernel gives up where a rename elsewhere made it unsure that `..` stayed beneath. */
  for (int tries = 0; tries < OPEN_TRIES_MAX; tries++) {
    found = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
    if (found >= 0 || errno != EAGAIN) break;
  }
  int error = errno;
  close(root);
  errno = error;
  return found;
}

static int run_attach(struct work *work) {
  int error = 0, tree = -1;
  int found = open_beneath(work->source, work->data, O_DIRECTORY);
  if (found < 0) return errno;
  struct mount_attr attributes = {
      .attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | work->flags,
  };
  tree = open_tree(found, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
  if (tree < 0 || mount_setattr(tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0 ||
      move_mount(tree, "", AT_FDCWD, work->target, MOVE_MOUNT_F_EMPTY_PATH) != 0)
    error = errno;
  if (tree >= 0) close(tree);
  close(found);
  return error;
}

static int run_inode(struct work *work) {
  struct stat found;
  int error = 0, fd = open_beneath(work->source, work->data, 0);
  if (fd < 0) return errno;
  if (fstat(fd, &found) != 0) error = errno;
  else work->number = found.st_ino;
  work->result = &work->number;
  close(fd);
  return error;
}

/* O_NONBLOCK: where a process holds a lease on the file, EAGAIN instead of waiting for its end. */
static int run_open_file(struct work *work) {
  struct stat found;
  char link[64];
  int fd = -1, error = 0, path = open_beneath(work->source, work->data, 0);
  if (path < 0) return errno;
  snprintf(link, sizeof link, "/proc/self/fd/%d", path);
  if (fstat(path, &found) != 0) error = errno;
  else if (S_ISDIR(found.st_mode)) error = EISDIR;
  else if (!S_ISREG(found.st_mode)) error = ENXIO;
  else if ((fd = open(link, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY)) < 0) error = errno;
  else work->number = (uint64_t)fd;
  work->result = &work->number;
  close(path);
  return error;
}

static void execute(napi_env env, void *data) {
  struct work *work = data;
  (void)env;
  work->error = work->run(work);
}

static void complete(napi_env env, napi_status status, void *data) {
  struct work *work = data;
  napi_value value;
  if (status == napi_ok && work->error == 0) {
    if (work->result != NULL) napi_create_double(env, (double)*work->result, &value);
    else napi_get_undefined(env, &value);
    napi_resolve_deferred(env, work->deferred, value);
  } else {
    int error = work->error == 0 ? ECANCELED : work->error;
    napi_reject_deferred(env, work->deferred,
                         make_error(env, error, work->call));
  }
  napi_delete_async_work(env, work->handle);
  free(work);
}

/* Copies a text argument whole or fails: a cut path would name another file. */
static int read_text(napi_env env, napi_value value, char *into) {
  size_t length;
  if (napi_get_value_string_utf8(env, value, NULL, 0, &length) != napi_ok) return -1;
  if (length >= TEXT_MAX) return -1;
  if (napi_get_value_string_utf8(env, value, into, TEXT_MAX, &length) != napi_ok) return -1;
  return strlen(into) == length ? 0 : -1;
}

static napi_value start(napi_env env, struct work *work, const char *call,
                        int (*run)(struct work *)) {
  napi_value promise, name;
  work->call = call;
  work->run = run;
  napi_create_promise(env, &work->deferred, &promise);
  napi_create_string_utf8(env, "berth:mount", NAPI_AUTO_LENGTH, &name);
  napi_create_async_work(env, NULL, name, execute, complete, work, &work->handle);
  napi_queue_async_work(env, work->handle);
  return promise;
}

static napi_value refuse(napi_env env, struct work *work) {
  free(work);
  napi_throw_type_error(env, "EINVAL", "expected texts and flags");
  return NULL;
}

static napi_value js_mount(napi_env env, napi_callback_info info) {
  napi_value args[5];
  size_t count = 5;
  struct work *work = calloc(1, sizeof *work);
  napi_get_cb_info(env, info, &count, args, NULL, NULL);
  if (work == NULL || count != 5 || read_text(env, args[0], work->source) != 0 ||
      read_text(env, args[1], work->target) != 0 || read_text(env, args[2], work->type) != 0 ||
      napi_get_value_uint32(env, args[3], &work->flags) != napi_ok ||
      read_text(env, args[4], work->data) != 0)
    return refuse(env, work);
  return start(env, work, "mount", run_mount);
}

static napi_value js_unmount(napi_env env, napi_callback_info info) {
  napi_value args[2];
  size_t count = 2;
  struct work *work = calloc(1, sizeof *work);
  napi_get_cb_info(env, info, &count, args, NULL, NULL);
  if (work == NULL || count != 2 || read_text(env, args[0], work->target) != 0 ||
      napi_get_value_uint32(env, args[1], &work->flags) != napi_ok)
    return refuse(env, work);
  return start(env, work, "umount", run_unmount);
}

static napi_value js_attach(napi_env env, napi_callback_info info) {
  napi_value args[4];
  size_t count = 4;
  struct work *work = calloc(1, sizeof *work);
  napi_get_cb_info(env, info, &count, args, NULL, NULL);
  if (work == NULL || count != 4 || read_text(env, args[0], work->source) != 0 ||
      read_text(env, args[1], work->data) != 0 || read_text(env, args[2], work->target) != 0 ||
      napi_get_value_uint32(env, args[3], &work->flags) != napi_ok)
    return refuse(env, work);
  return start(env, work, "attach", run_attach);
}

static napi_value js_pipe(napi_env env, napi_callback_info info) {
  int ends[2];
  napi_value result;
  (void)info;
  if (pipe2(ends, O_CLOEXEC) != 0) {
    napi_throw(env, make_error(env, errno, "pipe2"));
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

static napi_value js_inode(napi_env env, napi_callback_info info) {
  napi_value args[2];
  size_t count = 2;
  struct work *work = calloc(1, sizeof *work);
  napi_get_cb_info(env, info, &count, args, NULL, NULL);
  if (work == NULL || count != 2 || read_text(env, args[0], work->source) != 0 ||
      read_text(env, args[1], work->data) != 0)
    return refuse(env, work);
  return start(env, work, "openat2", run_inode);
}

static napi_value js_open_file(napi_env env, napi_callback_info info) {
  napi_value args[2];
  size_t count = 2;
  struct work *work = calloc(1, sizeof *work);
  napi_get_cb_info(env, info, &count, args, NULL, NULL);
  if (work == NULL || count != 2 || read_text(env, args[0], work->source) != 0 ||
      read_text(env, args[1], work->data) != 0)
    return refuse(env, work);
  return start(env, work, "open", run_open_file);
}

static napi_value js_unread_bytes(napi_env env, napi_callback_info info) {
  napi_value args[1], result;
  size_t count = 1;
  int32_t fd;
  int bytes = 0;
  napi_get_cb_info(env, info, &count, args, NULL, NULL);
  if (count != 1 || napi_get_value_int32(env, args[0], &fd) != napi_ok) return refuse(env, NULL);
  if (ioctl(fd, FIONREAD, &bytes) != 0) {
    napi_throw(env, make_error(env, errno, "ioctl"));
    return NULL;
  }
  napi_create_int32(env, bytes, &result);
  return result;
}

NAPI_MODULE_INIT() {
  const napi_property_descriptor functions[] = {
      {"mount", NULL, js_mount, NULL, NULL, NULL, napi_enumerable, NULL},
      {"unmount", NULL, js_unmount, NULL, NULL, NULL, napi_enumerable, NULL},
      {"attach", NULL, js_attach, NULL, NULL, NULL, napi_enumerable, NULL},
      {"inode", NULL, js_inode, NULL, NULL, NULL, napi_enumerable, NULL},
      {"openFile", NULL, js_open_file, NULL, NULL, NULL, napi_enumerable, NULL},
      {"unreadBytes", NULL, js_unread_bytes, NULL, NULL, NULL, napi_enumerable, NULL},
      {"pipe", NULL, js_pipe, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
  define_file_functions(env, exports);
  define_listing_functions(env, exports);
  return exports;
}
