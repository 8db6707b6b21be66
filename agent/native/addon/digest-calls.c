/*
 * Digests of bytes on worker threads, as part of the addon. Their states are buffers, so that they
 * can be stored with a file.
 *
 *   newMd5()                            -> Buffer           the state of an MD5 of no bytes
 *   addToMd5(state, chunks)             -> Promise<void>    one call at a time per state
 *   digestMd5(state)                    -> Buffer           16 bytes; the state can be added to
 *   newCrc(kind)                        -> Buffer           kinds: crc.h
 *   addToCrc(state, chunks)             -> Promise<void>    one call at a time per state
 *   addToCrcNow(state, chunks)          -> void             on the calling thread, for a few bytes
 *   digestCrc(state)                    -> bigint           the state can be added to
 *   combineCrcs(kind, crcs, lengths)    -> Promise<bigint>
 *     The CRC of pieces in a row: their CRCs and their lengths in bytes, each a buffer of numbers
 *     of 64 bits, little-endian.
 */
#include "digest-calls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "chunks.h"
#include "crc.h"
#include "md5.h"
#include "task.h"

struct digest_task {
  struct task task;
  struct chunks chunks;
  void *state;
  uint32_t kind;
  size_t count;
  uint64_t *crcs, *lengths, result;
};

static void release(struct task *task) {
  struct digest_task *digest = (struct digest_task *)task;
  free_chunks(&digest->chunks);
  free(digest->crcs);
  free(digest->lengths);
}

static struct digest_task *new_digest_task(int (*run)(struct task *),
                                           napi_value (*result)(napi_env, struct task *)) {
  struct digest_task *digest = calloc(1, sizeof *digest);
  if (digest != NULL)
    digest->task = (struct task){.run = run, .result = result, .release = release};
  return digest;
}

static int run_add_to_md5(struct task *task) {
  struct digest_task *digest = (struct digest_task *)task;
  for (uint32_t i = 0; i < digest->chunks.count; i++)
    md5_update(digest->state, digest->chunks.list[i].iov_base, digest->chunks.list[i].iov_len);
  return 0;
}

static int run_add_to_crc(struct task *task) {
  struct digest_task *digest = (struct digest_task *)task;
  for (uint32_t i = 0; i < digest->chunks.count; i++)
    crc_update(digest->state, digest->chunks.list[i].iov_base, digest->chunks.list[i].iov_len);
  return 0;
}

static int run_combine(struct task *task) {
  struct digest_task *digest = (struct digest_task *)task;
  struct crc none;
  if (!crc_init(&none, digest->kind)) return EINVAL;
  digest->result = crc_digest(&none);
  for (size_t i = 0; i < digest->count; i++)
    digest->result = crc_combine(digest->kind, digest->result, digest->crcs[i], digest->lengths[i]);
  return 0;
}

static napi_value result_crc(napi_env env, struct task *task) {
  napi_value value;
  napi_create_bigint_uint64(env, ((struct digest_task *)task)->result, &value);
  return value;
}

/* The bytes of a buffer of this length; NULL when the value is anything else. */
static void *read_state(napi_env env, napi_value value, size_t expected) {
  bool is_buffer = false;
  void *bytes;
  size_t length;
  if (napi_is_buffer(env, value, &is_buffer) != napi_ok || !is_buffer) return NULL;
  if (napi_get_buffer_info(env, value, &bytes, &length) != napi_ok) return NULL;
  return length == expected && (uintptr_t)bytes % _Alignof(uint64_t) == 0 ? bytes : NULL;
}

static struct crc *read_crc(napi_env env, napi_value value) {
  struct crc probe, *crc = read_state(env, value, sizeof *crc);
  return crc != NULL && crc_init(&probe, crc->kind) ? crc : NULL;
}

static uint64_t *copy_numbers(napi_env env, napi_value value, size_t *count) {
  bool is_buffer = false;
  void *bytes;
  size_t length;
  uint64_t *copy;
  if (napi_is_buffer(env, value, &is_buffer) != napi_ok || !is_buffer) return NULL;
  if (napi_get_buffer_info(env, value, &bytes, &length) != napi_ok) return NULL;
  if (length % sizeof *copy != 0 || (copy = malloc(length + 1)) == NULL) return NULL;
  if (length > 0) memcpy(copy, bytes, length);
  *count = length / sizeof *copy;
  return copy;
}

/* Both of the buffers are kept from being collected while the work uses them. */
static napi_value start_with(napi_env env, struct digest_task *digest, const napi_value args[2],
                             const char *call) {
  napi_value kept;
  napi_create_array_with_length(env, 2, &kept);
  napi_set_element(env, kept, 0, args[0]);
  napi_set_element(env, kept, 1, args[1]);
  return start_task(env, &digest->task, call, kept);
}

static napi_value js_new_md5(napi_env env, napi_callback_info info) {
  struct md5 md5;
  napi_value state;
  (void)info;
  md5_init(&md5);
  napi_create_buffer_copy(env, sizeof md5, &md5, NULL, &state);
  return state;
}

static napi_value js_add_to_md5(napi_env env, napi_callback_info info) {
  napi_value args[2];
  struct digest_task *digest = new_digest_task(run_add_to_md5, result_nothing);
  if (digest == NULL || !read_arguments(env, info, 2, args) ||
      (digest->state = read_state(env, args[0], sizeof(struct md5))) == NULL ||
      !read_chunks(env, args[1], &digest->chunks))
    return refuse_task(env, &digest->task);
  return start_with(env, digest, args, "md5");
}

static napi_value js_digest_md5(napi_env env, napi_callback_info info) {
  napi_value args[1], digest;
  uint8_t bytes[16];
  const struct md5 *md5;
  if (!read_arguments(env, info, 1, args) || (md5 = read_state(env, args[0], sizeof *md5)) == NULL)
    return refuse_task(env, NULL);
  md5_digest(md5, bytes);
  napi_create_buffer_copy(env, sizeof bytes, bytes, NULL, &digest);
  return digest;
}

static napi_value js_new_crc(napi_env env, napi_callback_info info) {
  napi_value args[1], state;
  struct crc crc;
  uint32_t kind;
  if (!read_arguments(env, info, 1, args) ||
      napi_get_value_uint32(env, args[0], &kind) != napi_ok || !crc_init(&crc, kind))
    return refuse_task(env, NULL);
  napi_create_buffer_copy(env, sizeof crc, &crc, NULL, &state);
  return state;
}

static napi_value js_add_to_crc(napi_env env, napi_callback_info info) {
  napi_value args[2];
  struct digest_task *digest = new_digest_task(run_add_to_crc, result_nothing);
  if (digest == NULL || !read_arguments(env, info, 2, args) ||
      (digest->state = read_crc(env, args[0])) == NULL ||
      !read_chunks(env, args[1], &digest->chunks))
    return refuse_task(env, &digest->task);
  return start_with(env, digest, args, "crc");
}

static napi_value js_add_to_crc_now(napi_env env, napi_callback_info info) {
  napi_value args[2];
  struct digest_task digest = {0};
  bool is_read = read_arguments(env, info, 2, args) &&
                 (digest.state = read_crc(env, args[0])) != NULL &&
                 read_chunks(env, args[1], &digest.chunks);
  if (is_read) run_add_to_crc(&digest.task);
  free_chunks(&digest.chunks);
  return is_read ? NULL : refuse_task(env, NULL);
}

static napi_value js_digest_crc(napi_env env, napi_callback_info info) {
  napi_value args[1], value;
  const struct crc *crc;
  if (!read_arguments(env, info, 1, args) || (crc = read_crc(env, args[0])) == NULL)
    return refuse_task(env, NULL);
  napi_create_bigint_uint64(env, crc_digest(crc), &value);
  return value;
}

static napi_value js_combine_crcs(napi_env env, napi_callback_info info) {
  napi_value args[3];
  size_t lengths = 0;
  struct digest_task *digest = new_digest_task(run_combine, result_crc);
  if (digest == NULL || !read_arguments(env, info, 3, args) ||
      napi_get_value_uint32(env, args[0], &digest->kind) != napi_ok ||
      (digest->crcs = copy_numbers(env, args[1], &digest->count)) == NULL ||
      (digest->lengths = copy_numbers(env, args[2], &lengths)) == NULL || lengths != digest->count)
    return refuse_task(env, &digest->task);
  return start_task(env, &digest->task, "crc", NULL);
}

void define_digest_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"newMd5", NULL, js_new_md5, NULL, NULL, NULL, napi_enumerable, NULL},
      {"addToMd5", NULL, js_add_to_md5, NULL, NULL, NULL, napi_enumerable, NULL},
      {"digestMd5", NULL, js_digest_md5, NULL, NULL, NULL, napi_enumerable, NULL},
      {"newCrc", NULL, js_new_crc, NULL, NULL, NULL, napi_enumerable, NULL},
      {"addToCrc", NULL, js_add_to_crc, NULL, NULL, NULL, napi_enumerable, NULL},
      {"addToCrcNow", NULL, js_add_to_crc_now, NULL, NULL, NULL, napi_enumerable, NULL},
      {"digestCrc", NULL, js_digest_crc, NULL, NULL, NULL, napi_enumerable, NULL},
      {"combineCrcs", NULL, js_combine_crcs, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
