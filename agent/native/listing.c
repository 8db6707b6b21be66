/*
 * Sorted pages of a directory that callers own, as part of the addon.
 *
 *   listDirectory(root, path, prefix, after, limit, attribute) -> Promise<{ entries, after? }>
 *     Files and directories whose names begin with the prefix, in byte order, where a directory
 *     counts as its name with a slash: the `limit` first ones after `after`, and the directory that
 *     `after` leads into. Links count as the regular file that they lead to beneath the root; other
 *     links, other kinds of files, and names that are not UTF-8 (RFC 3629) are left out.
 *     Entries that are gone by now are left out too: the answered `after` tells where to go on,
 *     and is missing when there is nothing more.
 *     Each entry: name, isDirectory; of a file also sizeBytes, inode, mtimeNs, ctimeNs, and the
 *     value of the extended attribute if it has one.
 *
 * One scan of the directory per page and a heap of one page: memory does not grow with it.
 */
#define _GNU_SOURCE
#include "addon.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { NAME_BYTES_MAX = 255, LIMIT_MAX = 10001, PATH_BYTES_MAX = 4096 };

struct entry {
  char key[NAME_BYTES_MAX + 2]; /* a directory's with a slash, and a NUL that does not count */
  size_t length;
  bool is_directory, is_link, is_found;
  struct stat status;
  size_t record_bytes;
  uint8_t *record; /* null: it has none */
};

struct listing {
  struct task task;
  char *root, *path, *attribute;
  const char *prefix, *after;
  size_t prefix_bytes, after_bytes;
  uint32_t limit, count;
  bool is_cut;           /* there is more than the page */
  struct entry *entries; /* as they came */
  struct entry **heap;   /* the greatest key first; in the end sorted */
};

static void release(struct task *task) {
  struct listing *listing = (struct listing *)task;
  free(listing->root);
  free(listing->path);
  free(listing->attribute);
  for (uint32_t i = 0; i < listing->count; i++) free(listing->heap[i]->record);
  free(listing->entries);
  free(listing->heap);
}

static int compare_bytes(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
  int order = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);
  if (order != 0) return order;
  return a_bytes < b_bytes ? -1 : a_bytes > b_bytes;
}

static int compare_entries(const void *a, const void *b) {
  const struct entry *left = *(struct entry *const *)a, *right = *(struct entry *const *)b;
  return compare_bytes(left->key, left->length, right->key, right->length);
}

static bool is_utf8(const char *text) {
  for (const uint8_t *byte = (const uint8_t *)text; *byte != 0;) {
    uint32_t code = *byte++;
    int more = code < 0x80 ? 0 : code >= 0xc2 && code < 0xe0 ? 1 : (code & 0xf0) == 0xe0 ? 2 : 3;
    if (code < 0x80) continue;
    if (code < 0xc2 || code > 0xf4) return false;
    code &= 0x3fu >> more;
    for (int i = 0; i < more; i++, byte++) {
      if ((*byte & 0xc0) != 0x80) return false;
      code = code << 6 | (*byte & 0x3fu);
    }
    if (more == 2 && (code < 0x800 || (code >= 0xd800 && code < 0xe000))) return false;
    if (more == 3 && (code < 0x10000 || code > 0x10ffff)) return false;
  }
  return true;
}

static bool is_wanted(const struct listing *listing, const struct entry *entry) {
  size_t name_bytes = entry->length - (entry->is_directory ? 1 : 0);
  if (name_bytes < listing->prefix_bytes) return false;
  if (memcmp(entry->key, listing->prefix, listing->prefix_bytes) != 0) return false;
  if (entry->is_directory && entry->length < listing->after_bytes &&
      memcmp(entry->key, listing->after, entry->length) == 0)
    return true;
  return compare_bytes(entry->key, entry->length, listing->after, listing->after_bytes) > 0;
}

static void sift_down(struct entry **heap, uint32_t count, uint32_t at) {
  for (;;) {
    uint32_t greatest = at, left = 2 * at + 1, right = left + 1;
    if (left < count && compare_entries(&heap[left], &heap[greatest]) > 0) greatest = left;
    if (right < count && compare_entries(&heap[right], &heap[greatest]) > 0) greatest = right;
    if (greatest == at) return;
    struct entry *moved = heap[at];
    heap[at] = heap[greatest];
    heap[greatest] = moved;
    at = greatest;
  }
}

static void keep(struct listing *listing, const struct entry *entry) {
  struct entry **heap = listing->heap;
  if (listing->count == listing->limit) {
    listing->is_cut = true;
    *heap[0] = *entry;
    sift_down(heap, listing->count, 0);
    return;
  }
  uint32_t at = listing->count++;
  heap[at] = &listing->entries[at];
  *heap[at] = *entry;
  while (at > 0 && compare_entries(&heap[at], &heap[(at - 1) / 2]) > 0) {
    struct entry *moved = heap[at];
    heap[at] = heap[(at - 1) / 2];
    heap[(at - 1) / 2] = moved;
    at = (at - 1) / 2;
  }
}

/* A descriptor (O_PATH) of what the link leads to beneath the root. */
static int follow(const struct listing *listing, const char *name) {
  char path[PATH_BYTES_MAX];
  const char *slash = listing->path[0] == '\0' ? "" : "/";
  int length = snprintf(path, sizeof path, "%s%s%s", listing->path, slash, name);
  if (length < 0 || (size_t)length >= sizeof path) return -1;
  return open_beneath(listing->root, path, 0);
}

static bool leads_to_file(const struct listing *listing, const char *name) {
  struct stat status;
  int fd = follow(listing, name);
  if (fd < 0) return false;
  bool is_file = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  close(fd);
  return is_file;
}

static void consider(struct listing *listing, int directory, const struct dirent *found) {
  struct entry entry;
  struct stat status;
  unsigned char type = found->d_type;
  size_t length = strlen(found->d_name);
  if (length > NAME_BYTES_MAX || strcmp(found->d_name, ".") == 0 ||
      strcmp(found->d_name, "..") == 0)
    return;
  if (type == DT_UNKNOWN) {
    if (fstatat(directory, found->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) return;
    type = (unsigned char)IFTODT(status.st_mode);
  }
  if (type != DT_REG && type != DT_DIR && type != DT_LNK) return;
  memcpy(entry.key, found->d_name, length + 1);
  entry.is_directory = type == DT_DIR;
  entry.is_link = type == DT_LNK;
  entry.is_found = false;
  entry.record = NULL;
  entry.length = length + (entry.is_directory ? 1 : 0);
  if (entry.is_directory) memcpy(entry.key + length, "/", 2);
  if (!is_wanted(listing, &entry)) return;
  const struct entry *greatest = listing->count == listing->limit ? listing->heap[0] : NULL;
  bool is_beyond = greatest != NULL && compare_bytes(entry.key, entry.length, greatest->key,
                                                     greatest->length) > 0;
  if (is_beyond && listing->is_cut) return;
  if (!is_utf8(found->d_name)) return;
  if (entry.is_link && !leads_to_file(listing, found->d_name)) return;
  if (is_beyond) listing->is_cut = true;
  else keep(listing, &entry);
}

static void keep_record(struct entry *entry, ssize_t length, const uint8_t *record) {
  if (length < 0 || (entry->record = malloc((size_t)length + 1)) == NULL) return;
  memcpy(entry->record, record, (size_t)length);
  entry->record_bytes = (size_t)length;
}

static void inspect(const struct listing *listing, int directory, struct entry *entry) {
  char path[PATH_BYTES_MAX];
  uint8_t record[ATTRIBUTE_BYTES_MAX];
  if (entry->is_directory) {
    entry->is_found = true;
    return;
  }
  int fd = entry->is_link ? follow(listing, entry->key) : -1;
  if (entry->is_link && fd < 0) return;
  int flags = entry->is_link ? AT_EMPTY_PATH : AT_SYMLINK_NOFOLLOW;
  int error = entry->is_link ? fstatat(fd, "", &entry->status, flags)
                             : fstatat(directory, entry->key, &entry->status, flags);
  if (error == 0 && S_ISREG(entry->status.st_mode)) {
    entry->is_found = true;
    if (entry->is_link) snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    else snprintf(path, sizeof path, "/proc/self/fd/%d/%s", directory, entry->key);
    keep_record(entry, entry->is_link ? getxattr(path, listing->attribute, record, sizeof record)
                                      : lgetxattr(path, listing->attribute, record, sizeof record),
                record);
  }
  if (fd >= 0) close(fd);
}

static int run_listing(struct task *task) {
  struct listing *listing = (struct listing *)task;
  const struct dirent *found;
  char link[64];
  int path = open_beneath(listing->root, listing->path, O_DIRECTORY);
  if (path < 0) return errno;
  snprintf(link, sizeof link, "/proc/self/fd/%d", path);
  DIR *directory = opendir(link);
  int error = errno;
  close(path);
  if (directory == NULL) return error;
  listing->entries = malloc(listing->limit * sizeof *listing->entries);
  listing->heap = malloc(listing->limit * sizeof(struct entry *));
  if (listing->entries == NULL || listing->heap == NULL) {
    closedir(directory);
    return ENOMEM;
  }
  while (errno = 0, (found = readdir(directory)) != NULL)
    consider(listing, dirfd(directory), found);
  error = errno;
  qsort(listing->heap, listing->count, sizeof(struct entry *), compare_entries);
  for (uint32_t i = 0; i < listing->count; i++)
    inspect(listing, dirfd(directory), listing->heap[i]);
  closedir(directory);
  return error;
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

static napi_value result_listing(napi_env env, struct task *task) {
  const struct listing *listing = (struct listing *)task;
  napi_value result, entries, value;
  uint32_t found = 0;
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

static bool read_bytes(napi_env env, napi_value value, const char **into, size_t *length) {
  bool is_buffer = false;
  void *bytes = NULL;
  if (napi_is_buffer(env, value, &is_buffer) != napi_ok || !is_buffer) return false;
  if (napi_get_buffer_info(env, value, &bytes, length) != napi_ok) return false;
  *into = bytes == NULL ? "" : bytes;
  return true;
}

static napi_value js_list_directory(napi_env env, napi_callback_info info) {
  napi_value args[6], kept;
  size_t count = 6;
  struct listing *listing = calloc(1, sizeof *listing);
  if (listing == NULL) return refuse_task(env, NULL);
  listing->task = (struct task){.run = run_listing, .result = result_listing, .release = release};
  napi_get_cb_info(env, info, &count, args, NULL, NULL);
  if (count != 6 || (listing->root = copy_text(env, args[0])) == NULL ||
      (listing->path = copy_text(env, args[1])) == NULL ||
      !read_bytes(env, args[2], &listing->prefix, &listing->prefix_bytes) ||
      !read_bytes(env, args[3], &listing->after, &listing->after_bytes) ||
      napi_get_value_uint32(env, args[4], &listing->limit) != napi_ok || listing->limit == 0 ||
      listing->limit > LIMIT_MAX || (listing->attribute = copy_text(env, args[5])) == NULL)
    return refuse_task(env, &listing->task);
  napi_create_array_with_length(env, 2, &kept);
  napi_set_element(env, kept, 0, args[2]);
  napi_set_element(env, kept, 1, args[3]);
  return start_task(env, &listing->task, "listing", kept);
}

void define_listing_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"listDirectory", NULL, js_list_directory, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, 1, functions);
}
