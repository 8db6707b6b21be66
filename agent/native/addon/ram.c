/*
 * The RAM of virtual machines, as part of the addon. The RAM of a template lies in a memory file
 * that many machines map privately, so each machine owns only the pages that it has changed.
 *
 *   newMemory(name, sizeBytes)      -> number           memfd_create(2), close-on-exec, all zero
 *   sealMemory(fd)                  -> void             neither contents nor seals can change again
 *   isSealed(fd)                    -> boolean          whether sealMemory was called; for any file
 *   copyMemory(from, to, sizeBytes) -> Promise<bigint>  a hash of the contents
 *     Pages of zeros become holes in `to`, which must be empty. With a `to` of -1 it only hashes.
 *     The hash does not depend on where the holes are. EBADMSG: `from` has another size.
 *   saveChangedPages(pid, { device, inode, sizeBytes }, template, out, key) -> Promise<number>
 *     The process must map the whole of that file privately, with zeroed memory for its holes at
 *     most (holes.c), and must be stopped. Writes its pages that differ from the template, a
 *     descriptor, to the empty file `out`; with a template of -1, every page that it has written
 *     to. The caller syncs the file. Resolves with the number of pages.
 *   loadChangedPages(pid, { device, inode, sizeBytes }, in, key) -> Promise<number>
 *     Copies them into such a process that has not run yet. EBADMSG: the file is torn or damaged;
 *     ESTALE: it has another key, or other sizes. In both cases nothing was written, unless the
 *     file changed meanwhile.
 *
 * The key is 32 bytes that identify the template. ENOENT: the process maps no such file; EINVAL: it
 * does not map all of it once, in order, and privately; ESRCH: the process has ended.
 */
#define _GNU_SOURCE
#include "ram.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hash.h"
#include "ram-file.h"
#include "ram-load.h"
#include "ram-process.h"
#include "ram-save.h"
#include "task.h"

struct ram_task {
  struct task task;
  int32_t pid, template, from, to; /* `template`, `from` and `to` are descriptors. */
  uint64_t device, inode;
  int64_t size_bytes;
  uint8_t key[KEY_BYTES];
  uint64_t hash, pages;
};

/* Copies and hashes the pages of one piece that are not zero. */
static int copy_piece(struct ram_task *work, struct hash *hash, const uint8_t *piece,
                      uint64_t offset, size_t length) {
  size_t size = page_bytes(), end;
  for (size_t at = 0; at < length; at = end) {
    end = at + size;
    if (is_zero(piece + at, size)) continue;
    while (end < length && !is_zero(piece + end, size)) end += size;
    const uint64_t place[4] = {offset + at, end - at}; /* A whole block of the hash. */
    hash_update(hash, place, sizeof place);
    hash_update(hash, piece + at, end - at);
    if (work->to < 0) continue;
    int error = write_all(work->to, piece + at, end - at, offset + at);
    if (error != 0) return error;
  }
  return 0;
}

/* Pieces start at multiples of their length, so that the hash does not depend on the holes. */
static int copy_data(struct ram_task *work, struct hash *hash, uint8_t *piece, size_t piece_bytes) {
  uint64_t size = (uint64_t)work->size_bytes;
  for (uint64_t at = 0; at < size; at += piece_bytes) {
    off_t data = lseek(work->from, (off_t)at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break; /* A hole to the end. */
    if (data < 0) return errno;
    at = (uint64_t)data / piece_bytes * piece_bytes;
    if (at >= size) break;
    size_t length = size - at < piece_bytes ? (size_t)(size - at) : piece_bytes;
    int error = read_all(work->from, piece, length, at);
    if (error == 0) error = copy_piece(work, hash, piece, at, length);
    if (error != 0) return error;
  }
  return 0;
}

static int run_copy(struct task *task) {
  struct ram_task *work = (struct ram_task *)task;
  size_t piece_bytes = BLOCK_PAGES * (size_t)page_bytes();
  struct hash hash;
  struct stat found;
  if (fstat(work->from, &found) != 0) return errno;
  if (found.st_size != work->size_bytes) return EBADMSG;
  uint8_t *piece = malloc(piece_bytes);
  if (piece == NULL) return ENOMEM;
  hash_init(&hash);
  int error = copy_data(work, &hash, piece, piece_bytes);
  if (error == 0 && work->to >= 0 && ftruncate(work->to, work->size_bytes) != 0) error = errno;
  free(piece);
  work->hash = hash_digest(&hash);
  return error;
}

static int run_save(struct task *task) {
  struct ram_task *work = (struct ram_task *)task;
  struct ram ram;
  int error = ram_open(&ram, work->pid, work->device, work->inode, (uint64_t)work->size_bytes);
  if (error != 0) return error;
  error = save_pages(&ram, work->template, work->to, work->key, &work->pages);
  int ended = ram_close(&ram);
  return error == 0 ? ended : error;
}

static int run_load(struct task *task) {
  struct ram_task *work = (struct ram_task *)task;
  struct ram ram;
  int error = ram_open(&ram, work->pid, work->device, work->inode, (uint64_t)work->size_bytes);
  if (error != 0) return error;
  error = load_pages(&ram, work->from, work->key, &work->pages);
  int ended = ram_close(&ram);
  return error == 0 ? ended : error;
}

static napi_value result_hash(napi_env env, struct task *task) {
  napi_value value;
  napi_create_bigint_uint64(env, ((struct ram_task *)task)->hash, &value);
  return value;
}

static napi_value result_pages(napi_env env, struct task *task) {
  napi_value value;
  napi_create_double(env, (double)((struct ram_task *)task)->pages, &value);
  return value;
}

static struct ram_task *new_ram_task(int (*run)(struct task *),
                                     napi_value (*result)(napi_env, struct task *)) {
  struct ram_task *work = calloc(1, sizeof *work);
  if (work != NULL) work->task = (struct task){.run = run, .result = result};
  return work;
}

static bool read_int32(napi_env env, napi_value value, int32_t *into) {
  return napi_get_value_int32(env, value, into) == napi_ok;
}

/* Whole pages only. */
static bool read_size(napi_env env, napi_value value, int64_t *into) {
  return napi_get_value_int64(env, value, into) == napi_ok && *into > 0 &&
         *into % page_bytes() == 0;
}

static bool read_number(napi_env env, napi_value object, const char *name, uint64_t *into) {
  napi_value value;
  bool is_whole = false;
  return napi_get_named_property(env, object, name, &value) == napi_ok &&
         napi_get_value_bigint_uint64(env, value, into, &is_whole) == napi_ok && is_whole;
}

static bool read_mapping(napi_env env, napi_value object, struct ram_task *work) {
  napi_value size;
  return read_number(env, object, "device", &work->device) &&
         read_number(env, object, "inode", &work->inode) &&
         napi_get_named_property(env, object, "sizeBytes", &size) == napi_ok &&
         read_size(env, size, &work->size_bytes);
}

static bool read_key(napi_env env, napi_value value, uint8_t key[KEY_BYTES]) {
  bool is_buffer = false;
  void *bytes;
  size_t length;
  if (napi_is_buffer(env, value, &is_buffer) != napi_ok || !is_buffer ||
      napi_get_buffer_info(env, value, &bytes, &length) != napi_ok || length != KEY_BYTES)
    return false;
  memcpy(key, bytes, KEY_BYTES);
  return true;
}

static napi_value fail(napi_env env, const char *call) {
  napi_throw(env, make_error(env, errno, call));
  return NULL;
}

static napi_value js_new_memory(napi_env env, napi_callback_info info) {
  napi_value args[2], result;
  int64_t size_bytes;
  char *name;
  if (!read_arguments(env, info, 2, args) || !read_size(env, args[1], &size_bytes) ||
      (name = copy_text(env, args[0])) == NULL)
    return refuse_task(env, NULL);
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  free(name);
  if (fd < 0) return fail(env, "memfd_create");
  if (ftruncate(fd, size_bytes) != 0) {
    int error = errno;
    close(fd);
    errno = error;
    return fail(env, "ftruncate");
  }
  napi_create_int32(env, fd, &result);
  return result;
}

static const int SEALS = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

static napi_value js_seal_memory(napi_env env, napi_callback_info info) {
  napi_value args[1], result;
  int32_t fd;
  if (!read_arguments(env, info, 1, args) || !read_int32(env, args[0], &fd))
    return refuse_task(env, NULL);
  if (fcntl(fd, F_ADD_SEALS, SEALS) != 0) return fail(env, "fcntl");
  napi_get_undefined(env, &result);
  return result;
}

static napi_value js_is_sealed(napi_env env, napi_callback_info info) {
  napi_value args[1], result;
  int32_t fd;
  if (!read_arguments(env, info, 1, args) || !read_int32(env, args[0], &fd))
    return refuse_task(env, NULL);
  int seals = fcntl(fd, F_GET_SEALS); /* Fails for files that cannot have any. */
  napi_get_boolean(env, seals >= 0 && (seals & SEALS) == SEALS, &result);
  return result;
}

static napi_value js_copy_memory(napi_env env, napi_callback_info info) {
  napi_value args[3];
  struct ram_task *work = new_ram_task(run_copy, result_hash);
  if (work == NULL || !read_arguments(env, info, 3, args) ||
      !read_int32(env, args[0], &work->from) || !read_int32(env, args[1], &work->to) ||
      !read_size(env, args[2], &work->size_bytes))
    return refuse_task(env, &work->task);
  return start_task(env, &work->task, "copyMemory", NULL);
}

static napi_value js_save(napi_env env, napi_callback_info info) {
  napi_value args[5];
  struct ram_task *work = new_ram_task(run_save, result_pages);
  if (work == NULL || !read_arguments(env, info, 5, args) ||
      !read_int32(env, args[0], &work->pid) || !read_mapping(env, args[1], work) ||
      !read_int32(env, args[2], &work->template) || !read_int32(env, args[3], &work->to) ||
      !read_key(env, args[4], work->key))
    return refuse_task(env, &work->task);
  return start_task(env, &work->task, "saveChangedPages", NULL);
}

static napi_value js_load(napi_env env, napi_callback_info info) {
  napi_value args[4];
  struct ram_task *work = new_ram_task(run_load, result_pages);
  if (work == NULL || !read_arguments(env, info, 4, args) ||
      !read_int32(env, args[0], &work->pid) || !read_mapping(env, args[1], work) ||
      !read_int32(env, args[2], &work->from) || !read_key(env, args[3], work->key))
    return refuse_task(env, &work->task);
  return start_task(env, &work->task, "loadChangedPages", NULL);
}

void define_ram_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"newMemory", NULL, js_new_memory, NULL, NULL, NULL, napi_enumerable, NULL},
      {"sealMemory", NULL, js_seal_memory, NULL, NULL, NULL, napi_enumerable, NULL},
      {"isSealed", NULL, js_is_sealed, NULL, NULL, NULL, napi_enumerable, NULL},
      {"copyMemory", NULL, js_copy_memory, NULL, NULL, NULL, napi_enumerable, NULL},
      {"saveChangedPages", NULL, js_save, NULL, NULL, NULL, napi_enumerable, NULL},
      {"loadChangedPages", NULL, js_load, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
