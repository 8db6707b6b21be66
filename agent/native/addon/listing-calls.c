/*
 * Sorted pages of a directory that callers own, as part of the addon.
 *
 *   newListing(root, path, prefix, after, limit, attribute) -> listing
 *   readListing(listing, milliseconds)      -> Promise<{ entries, after? } | undefined>
 *   closeListing(listing)                   -> void
 *     Files and directories whose names begin with the prefix, in byte order, where a directory
 *     counts as its name with a slash: the `limit` first ones after `after`, and the directory that
 *     `after` leads into. Links count as the regular file that they lead to beneath the root; other
 *     links, other kinds of files, and names that are not UTF-8 (RFC 3629) are left out.
 *     Entries removed meanwhile are left out as well. The returned `after` is where the next page
 *     starts; it is absent on the last page.
 *     Each entry: name, isDirectory; of a file also sizeBytes, inode, mtimeNs, ctimeNs, and the
 *     value of the extended attribute if it has one.
 *
 * A directory may be of any size, so a page is read in slices: readListing works for about that
 * many milliseconds and resolves with undefined when there is more to do. A listing holds the
 * directory open until closeListing, which must not be called while readListing runs.
 */
#define _GNU_SOURCE
#include "listing-calls.h"

#include <stdlib.h>
#include <string.h>

#include "listing.h"
#include "task.h"

struct slice {
  struct task task;
  struct listing *listing;
  uint32_t milliseconds;
};

static int run_slice(struct task *task) {
  struct slice *slice = (struct slice *)task;
  return advance_listing(slice->listing, slice->milliseconds);
}

static int64_t nanoseconds(struct timespec time) {
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void set(napi_env env, napi_value object, const char *name, napi_value value) {
  napi_set_named_property(env, object, name, value);
}

static napi_value make_entry(napi_env env, const struct entry *entry) {
  napi_value object, value;
  size_t name_bytes = entry->length - (entry->is_directory ? 1 : 0);
  napi_create_object(env, &object);
  napi_create_string_utf8(env, entry->key, name_bytes, &value);
  set(env, object, "name", value);
  napi_get_boolean(env, entry->is_directory, &value);
  set(env, object, "isDirectory", value);
  if (entry->is_directory) return object;
  napi_create_int64(env, entry->status.st_size, &value);
  set(env, object, "sizeBytes", value);
  napi_create_bigint_uint64(env, entry->status.st_ino, &value);
  set(env, object, "inode", value);
  napi_create_bigint_int64(env, nanoseconds(entry->status.st_mtim), &value);
  set(env, object, "mtimeNs", value);
  napi_create_bigint_int64(env, nanoseconds(entry->status.st_ctim), &value);
  set(env, object, "ctimeNs", value);
  if (entry->record == NULL) return object;
  napi_create_buffer_copy(env, entry->record_bytes, entry->record, NULL, &value);
  set(env, object, "record", value);
  return object;
}

static napi_value result_slice(napi_env env, struct task *task) {
  const struct slice *slice = (struct slice *)task;
  const struct listing *listing = slice->listing;
  napi_value result, entries, value;
  uint32_t found = 0;
  if (!listing->is_done) return result_nothing(env, task);
  napi_create_object(env, &result);
  napi_create_array(env, &entries);
  for (uint32_t i = 0; i < listing->count; i++) {
    const struct entry *entry = listing->heap[i];
    if (entry->is_found) napi_set_element(env, entries, found++, make_entry(env, entry));
  }
  set(env, result, "entries", entries);
  if (listing->is_cut) {
    const struct entry *last = listing->heap[listing->count - 1];
    napi_create_buffer_copy(env, last->length, last->key, NULL, &value);
    set(env, result, "after", value);
  }
  return result;
}

static bool copy_bytes(napi_env env, napi_value value, char **into, size_t *length) {
  bool is_buffer = false;
  void *bytes = NULL;
  if (napi_is_buffer(env, value, &is_buffer) != napi_ok || !is_buffer) return false;
  if (napi_get_buffer_info(env, value, &bytes, length) != napi_ok) return false;
  if ((*into = malloc(*length + 1)) == NULL) return false;
  if (*length > 0) memcpy(*into, bytes, *length);
  return true;
}

static void finalize(napi_env env, void *data, void *hint) {
  (void)env;
  (void)hint;
  free_listing(data);
}

static napi_value js_new_listing(napi_env env, napi_callback_info info) {
  napi_value args[6], handle;
  struct listing *listing = calloc(1, sizeof *listing);
  if (listing == NULL) return refuse_task(env, NULL);
  if (!read_arguments(env, info, 6, args) || (listing->root = copy_text(env, args[0])) == NULL ||
      (listing->path = copy_text(env, args[1])) == NULL ||
      !copy_bytes(env, args[2], &listing->prefix, &listing->prefix_bytes) ||
      !copy_bytes(env, args[3], &listing->after, &listing->after_bytes) ||
      napi_get_value_uint32(env, args[4], &listing->limit) != napi_ok || listing->limit == 0 ||
      listing->limit > LIMIT_MAX || (listing->attribute = copy_text(env, args[5])) == NULL ||
      napi_create_external(env, listing, finalize, NULL, &handle) != napi_ok) {
    free_listing(listing);
    return refuse_task(env, NULL);
  }
  return handle;
}

static struct listing *read_handle(napi_env env, napi_value value) {
  napi_valuetype type;
  void *listing;
  if (napi_typeof(env, value, &type) != napi_ok || type != napi_external) return NULL;
  return napi_get_value_external(env, value, &listing) == napi_ok ? listing : NULL;
}

static napi_value js_read_listing(napi_env env, napi_callback_info info) {
  napi_value args[2];
  struct slice *slice = calloc(1, sizeof *slice);
  if (slice == NULL) return refuse_task(env, NULL);
  slice->task = (struct task){.run = run_slice, .result = result_slice};
  if (!read_arguments(env, info, 2, args) || (slice->listing = read_handle(env, args[0])) == NULL ||
      napi_get_value_uint32(env, args[1], &slice->milliseconds) != napi_ok)
    return refuse_task(env, &slice->task);
  return start_task(env, &slice->task, "listing", args[0]);
}

static napi_value js_close_listing(napi_env env, napi_callback_info info) {
  napi_value args[1];
  struct listing *listing;
  if (!read_arguments(env, info, 1, args) || (listing = read_handle(env, args[0])) == NULL)
    return refuse_task(env, NULL);
  close_listing(listing);
  return result_nothing(env, NULL);
}

void define_listing_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"newListing", NULL, js_new_listing, NULL, NULL, NULL, napi_enumerable, NULL},
      {"readListing", NULL, js_read_listing, NULL, NULL, NULL, napi_enumerable, NULL},
      {"closeListing", NULL, js_close_listing, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
