/* What the parts of the addon share. */
#pragma once
#include <node_api.h>
#include <stdbool.h>
#include <stdint.h>

/* Room for what ext4 keeps beside a file: one block. */
enum { ATTRIBUTE_BYTES_MAX = 4096 };

/* An Error whose `code` is the errno name, as those of Node's own file functions. */
napi_value make_error(napi_env env, int error, const char *call);

/* Opens with O_PATH what lies beneath the directory; -1 and errno. Empty path: the directory. */
int open_beneath(const char *directory, const char *path, int flags);

/*
 * Work on libuv's threads that ends in a promise. A structure of one call begins with it and is
 * freed with it.
 */
struct task {
  napi_async_work handle;
  napi_deferred deferred;
  napi_ref kept; /* keeps the buffers that the work uses from being collected */
  const char *call;
  int (*run)(struct task *); /* 0, or an errno */
  napi_value (*result)(napi_env, struct task *);
  void (*release)(struct task *); /* frees what the structure owns; may be null */
  int error;
};

/* Starts the work and answers its promise. `kept` may be null. */
napi_value start_task(napi_env env, struct task *task, const char *call, napi_value kept);

/* Throws EINVAL, frees the task if there is one, and answers null. */
napi_value refuse_task(napi_env env, struct task *task);

/* The result of work that has none. */
napi_value result_nothing(napi_env env, struct task *task);

/* Reads as many arguments as a call must have; false when it has fewer. */
bool read_arguments(napi_env env, napi_callback_info info, size_t count, napi_value *into);

enum { TEXT_BYTES_MAX = 8192 };

/*
 * A copy of a text argument, to be freed; null when it is no text, is too long, or holds a NUL: a
 * cut path would name another file.
 */
char *copy_text(napi_env env, napi_value value);

/* Defines the functions of container.c, of files.c, of listing-calls.c, and of ram.c. */
void define_container_functions(napi_env env, napi_value exports);
void define_file_functions(napi_env env, napi_value exports);
void define_listing_functions(napi_env env, napi_value exports);
void define_ram_functions(napi_env env, napi_value exports);
