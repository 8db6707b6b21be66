/* Work on libuv's threads that settles a promise, and the arguments and errors of such calls. */
#pragma once
#include <node_api.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * A call on a thread. The structure of a particular call begins with this one and is freed with it.
 */
struct task {
  napi_async_work handle;
  napi_deferred deferred;
  napi_ref kept; /* Keeps the buffers that the work uses from being collected. */
  const char *call;
  int (*run)(struct task *); /* On a worker thread; returns 0 or an error number. */
  napi_value (*result)(napi_env, struct task *);
  void (*release)(struct task *); /* Frees what the structure owns; may be NULL. */
  int error;
};

/* Starts the work and returns its promise. `kept` may be NULL. */
napi_value start_task(napi_env env, struct task *task, const char *call, napi_value kept);

/* Throws EINVAL, frees the task if there is one, and returns NULL. */
napi_value refuse_task(napi_env env, struct task *task);

/* The result of work that has none. */
napi_value result_nothing(napi_env env, struct task *task);

/* An Error whose `code` is the errno name, like those of Node's own file functions. */
napi_value make_error(napi_env env, int error, const char *call);

/* Reads the arguments of a call; false when there are fewer than `count`. */
bool read_arguments(napi_env env, napi_callback_info info, size_t count, napi_value *into);

enum { TEXT_BYTES_MAX = 8192 };

/*
 * A copy of a text argument, for the caller to free. NULL when it is not a text, too long, or
 * contains NUL: cut there, a path would name another file.
 */
char *copy_text(napi_env env, napi_value value);
char *copy_text_up_to(napi_env env, napi_value value, size_t bytes_max);
