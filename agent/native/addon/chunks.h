/* Arrays of buffers as arguments. */
#pragma once
#include <node_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct chunks {
  uint32_t count;
  struct iovec *list;
};

/* Reads an array of at most IOV_MAX buffers; false when it is anything else. */
bool read_chunks(napi_env env, napi_value array, struct chunks *into);
void free_chunks(struct chunks *chunks);
