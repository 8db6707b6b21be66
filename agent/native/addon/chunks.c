#define _GNU_SOURCE
#include "chunks.h"

#include <limits.h>
#include <stdlib.h>

bool read_chunks(napi_env env, napi_value array, struct chunks *into) {
  bool is_array = false;
  if (napi_is_array(env, array, &is_array) != napi_ok || !is_array) return false;
  napi_get_array_length(env, array, &into->count);
  if (into->count > IOV_MAX) return false;
  into->list = calloc(into->count + 1u, sizeof *into->list);
  if (into->list == NULL) return false;
  for (uint32_t i = 0; i < into->count; i++) {
    struct iovec *chunk = &into->list[i];
    napi_value value;
    bool is_buffer = false;
    if (napi_get_element(env, array, i, &value) != napi_ok ||
        napi_is_buffer(env, value, &is_buffer) != napi_ok || !is_buffer ||
        napi_get_buffer_info(env, value, &chunk->iov_base, &chunk->iov_len) != napi_ok)
      return false;
  }
  return true;
}

void free_chunks(struct chunks *chunks) {
  free(chunks->list);
  *chunks = (struct chunks){0};
}
