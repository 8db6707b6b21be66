#define _GNU_SOURCE
#include "task.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

napi_value make_error(napi_env env, int error, const char *call) {
  char message[256];
  napi_value code, text, result;
  snprintf(message, sizeof message, "%s: %s", call, strerror(error));
  napi_create_string_utf8(env, strerrorname_np(error), NAPI_AUTO_LENGTH, &code);
  napi_create_string_utf8(env, message, NAPI_AUTO_LENGTH, &text);
  napi_create_error(env, code, text, &result);
  return result;
}

static void free_task(struct task *task) {
  if (task->release != NULL) task->release(task);
  free(task);
}

static void execute(napi_env env, void *data) {
  struct task *task = data;
  (void)env;
  task->error = task->run(task);
}

static void complete(napi_env env, napi_status status, void *data) {
  struct task *task = data;
  if (status == napi_ok && task->error == 0) {
    napi_resolve_deferred(env, task->deferred, task->result(env, task));
  } else {
    int error = task->error == 0 ? ECANCELED : task->error;
    napi_reject_deferred(env, task->deferred, make_error(env, error, task->call));
  }
  if (task->kept != NULL) napi_delete_reference(env, task->kept);
  napi_delete_async_work(env, task->handle);
  free_task(task);
}

napi_value start_task(napi_env env, struct task *task, const char *call, napi_value kept) {
  napi_value promise, name;
  task->call = call;
  if (kept != NULL) napi_create_reference(env, kept, 1, &task->kept);
  napi_create_promise(env, &task->deferred, &promise);
  napi_create_string_utf8(env, "berth:file", NAPI_AUTO_LENGTH, &name);
  napi_create_async_work(env, NULL, name, execute, complete, task, &task->handle);
  napi_queue_async_work(env, task->handle);
  return promise;
}

napi_value refuse_task(napi_env env, struct task *task) {
  if (task != NULL) free_task(task);
  napi_throw_type_error(env, "EINVAL", "an argument has the wrong type or an unusable value");
  return NULL;
}

char *copy_text(napi_env env, napi_value value) {
  return copy_text_up_to(env, value, TEXT_BYTES_MAX);
}

char *copy_text_up_to(napi_env env, napi_value value, size_t bytes_max) {
  size_t length;
  if (napi_get_value_string_utf8(env, value, NULL, 0, &length) != napi_ok) return NULL;
  if (length > bytes_max) return NULL;
  char *text = malloc(length + 1);
  if (text == NULL) return NULL;
  if (napi_get_value_string_utf8(env, value, text, length + 1, &length) == napi_ok &&
      strlen(text) == length)
    return text;
  free(text);
  return NULL;
}

bool read_arguments(napi_env env, napi_callback_info info, size_t count, napi_value *into) {
  size_t given = count;
  return napi_get_cb_info(env, info, &given, into, NULL, NULL) == napi_ok && given == count;
}

napi_value result_nothing(napi_env env, struct task *task) {
  napi_value value;
  (void)task;
  napi_get_undefined(env, &value);
  return value;
}
