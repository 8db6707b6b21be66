/*
 * Whether anything of a file system was changed, as part of the addon (fanotify(7)).
 *
 *   watchChanges(directory) -> number
 *     The descriptor of a group that notes every change of the file system mounted at `directory`,
 *     whichever mount it is made through, until the file system is unmounted everywhere.
 *   takeChanges(group) -> boolean
 *     Whether there was any since the last call. Never blocks. True as well when the kernel has
 *     dropped notes, when they cannot be read, and when there are more than are worth reading.
 *
 * The kernel notes a change in the system call that makes it: once the call has returned, the note
 * is there. Writes through a mapping are noted when the mapping and the last descriptor that the
 * file was opened for writing with are gone (FAN_CLOSE_WRITE).
 */
#define _GNU_SOURCE
#include "changes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/fanotify.h>
#include <unistd.h>

#include "task.h"

enum {
  NOTES_BYTES = 65536,
  READS_MAX = 32,
  CHANGES = FAN_MODIFY | FAN_CLOSE_WRITE | FAN_ATTRIB | FAN_CREATE | FAN_DELETE | FAN_MOVED_FROM |
            FAN_MOVED_TO | FAN_ONDIR,
};

static int watch(const char *directory) {
  int group = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID | FAN_CLOEXEC | FAN_NONBLOCK, 0);
  if (group < 0) return -1;
  unsigned flags = FAN_MARK_ADD | FAN_MARK_FILESYSTEM;
  if (fanotify_mark(group, flags, CHANGES, AT_FDCWD, directory) == 0) return group;
  int error = errno;
  close(group);
  errno = error;
  return -1;
}

static bool take(int group) {
  char notes[NOTES_BYTES];
  bool is_changed = false;
  for (int reads = 0; reads < READS_MAX; reads++) {
    ssize_t length = read(group, notes, sizeof notes);
    if (length < 0 && errno == EAGAIN) return is_changed;
    is_changed = true;
    if (length <= 0 && errno != EINTR) return true;
  }
  return true;
}

static napi_value js_watch_changes(napi_env env, napi_callback_info info) {
  napi_value args[1], result;
  char *directory;
  if (!read_arguments(env, info, 1, args) || (directory = copy_text(env, args[0])) == NULL)
    return refuse_task(env, NULL);
  int group = watch(directory), error = errno;
  free(directory);
  if (group >= 0 && napi_create_int32(env, group, &result) == napi_ok) return result;
  napi_throw(env, make_error(env, error, "watchChanges"));
  return NULL;
}

static napi_value js_take_changes(napi_env env, napi_callback_info info) {
  napi_value args[1], result;
  int32_t group;
  if (!read_arguments(env, info, 1, args) || napi_get_value_int32(env, args[0], &group) != napi_ok)
    return refuse_task(env, NULL);
  napi_get_boolean(env, take(group), &result);
  return result;
}

void define_change_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"watchChanges", NULL, js_watch_changes, NULL, NULL, NULL, napi_enumerable, NULL},
      {"takeChanges", NULL, js_take_changes, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
