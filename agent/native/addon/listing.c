/*
 * Sorted pages of a directory; listing-calls.c says what is in them. One scan of the directory per
 * page and a heap of one page: memory does not grow with it.
 */
#define _GNU_SOURCE
#include "listing.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "../common/beneath.h"

void close_listing(struct listing *listing) {
  if (listing->directory != NULL) closedir(listing->directory);
  listing->directory = NULL;
}

void free_listing(struct listing *listing) {
  close_listing(listing);
  free(listing->root);
  free(listing->path);
  free(listing->attribute);
  free(listing->prefix);
  free(listing->after);
  for (uint32_t i = 0; i < listing->count; i++) free(listing->heap[i]->record);
  free(listing->entries);
  free(listing->heap);
  free(listing);
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
    *heap[0] = *entry; /* NOLINT(clang-analyzer-core.NullDereference): the heap is full. */
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

/* Opens (O_PATH) the target of a link beneath the root; -1 if it has none there. */
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
  bool is_beyond = greatest != NULL &&
                   compare_bytes(entry.key, entry.length, greatest->key, greatest->length) > 0;
  if (is_beyond && listing->is_cut) return;
  if (!is_utf8(found->d_name)) return;
  if (entry.is_link && !leads_to_file(listing, found->d_name)) return;
  if (is_beyond)
    listing->is_cut = true;
  else
    keep(listing, &entry);
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
    if (entry->is_link)
      snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    else
      snprintf(path, sizeof path, "/proc/self/fd/%d/%s", directory, entry->key);
    keep_record(entry,
                entry->is_link ? getxattr(path, listing->attribute, record, sizeof record)
                               : lgetxattr(path, listing->attribute, record, sizeof record),
                record);
  }
  if (fd >= 0) close(fd);
}

static int open_directory(struct listing *listing) {
  char link[64];
  int path = open_beneath(listing->root, listing->path, O_DIRECTORY);
  if (path < 0) return errno;
  snprintf(link, sizeof link, "/proc/self/fd/%d", path);
  listing->directory = opendir(link);
  int error = errno;
  close(path);
  if (listing->directory == NULL) return error;
  listing->entries = malloc(listing->limit * sizeof *listing->entries);
  listing->heap = calloc(listing->limit, sizeof(struct entry *));
  return listing->entries == NULL || listing->heap == NULL ? ENOMEM : 0;
}

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int advance_listing(struct listing *listing, uint32_t milliseconds) {
  int64_t until = now_ms() + milliseconds;
  const struct dirent *found;
  if (listing->directory == NULL) {
    int error = listing->entries == NULL ? open_directory(listing) : EBADF;
    if (error != 0) return error;
  }
  if (listing->directory == NULL || listing->heap == NULL || listing->limit == 0) return EBADF;
  while (!listing->is_sorted) {
    if (now_ms() > until) return 0;
    errno = 0;
    if ((found = readdir(listing->directory)) != NULL) {
      consider(listing, dirfd(listing->directory), found);
      continue;
    }
    if (errno != 0) return errno;
    qsort(listing->heap, listing->count, sizeof(struct entry *), compare_entries);
    listing->is_sorted = true;
  }
  for (; listing->inspected < listing->count; listing->inspected++) {
    if (now_ms() > until) return 0;
    inspect(listing, dirfd(listing->directory), listing->heap[listing->inspected]);
  }
  listing->is_done = true;
  return 0;
}
