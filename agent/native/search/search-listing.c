/*
 * Lists a tree breadth-first, one getdents64(2) at a time, so that matching need not wait for it.
 */
#define _GNU_SOURCE
#include "search-listing.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "search-frames.h"

enum { ENTRIES_BYTES = 32 * 1024 };

void queue_push(struct queue *queue, char *path) {
  if (queue->first + queue->count == queue->capacity) {
    if (queue->first > queue->count) {
      memmove(queue->paths, queue->paths + queue->first, queue->count * sizeof *queue->paths);
      queue->first = 0;
    } else {
      queue->capacity = queue->capacity * 2 + 1024;
      queue->paths = allocate(queue->paths, queue->capacity * sizeof *queue->paths);
    }
  }
  queue->paths[queue->first + queue->count++] = path;
}

char *queue_shift(struct queue *queue) {
  queue->count--;
  return queue->paths[queue->first++];
}

static bool open_directory(struct listing *listing, char *path) {
  listing->directory = path;
  listing->fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  return listing->fd >= 0;
}

static void close_directory(struct listing *listing) {
  if (listing->fd >= 0) close(listing->fd);
  free(listing->directory);
  listing->fd = -1;
  listing->directory = NULL;
}

bool listing_start(struct listing *listing, bool recursive) {
  memset(listing, 0, sizeof *listing);
  listing->recursive = recursive;
  return open_directory(listing, memcpy(allocate(NULL, sizeof "."), ".", sizeof "."));
}

bool listing_done(const struct listing *listing) {
  return listing->fd < 0 && listing->directories.count == 0;
}

/* The type of an entry; links are never followed. */
static unsigned char type_of(int fd, const struct dirent64 *entry) {
  struct stat found;
  if (entry->d_type != DT_UNKNOWN) return entry->d_type;
  if (fstatat(fd, entry->d_name, &found, AT_SYMLINK_NOFOLLOW) != 0) return DT_UNKNOWN;
  return IFTODT(found.st_mode);
}

/* Paths begin with "./", so that rg takes no name for an option, nor "-" for stdin. */
static void add_entry(struct listing *listing, const struct dirent64 *entry) {
  const char *name = entry->d_name;
  if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return;
  unsigned char type = type_of(listing->fd, entry);
  if (type != DT_REG && (type != DT_DIR || !listing->recursive)) return;
  size_t above = strlen(listing->directory), below = strlen(name);
  if (above + 1 + below >= PATH_BYTES_MAX) {
    note_problem("%.100s…: the path is too long to be opened", listing->directory);
    return;
  }
  char *path = allocate(NULL, above + 1 + below + 1);
  memcpy(path, listing->directory, above);
  path[above] = '/';
  memcpy(path + above + 1, name, below + 1);
  queue_push(type == DT_REG ? &listing->files : &listing->directories, path);
}

static void open_next(struct listing *listing) {
  if (open_directory(listing, queue_shift(&listing->directories))) return;
  /* These mean that it was removed or replaced after its name was read. */
  if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP)
    note_problem("%s: cannot be listed: %s", listing->directory, strerror(errno));
  close_directory(listing);
}

/* Reads one buffer of entries, or opens the next directory. */
void listing_step(struct listing *listing) {
  static _Alignas(struct dirent64) char entries[ENTRIES_BYTES];
  uint64_t begun_at = now_us();
  if (listing->fd < 0) open_next(listing);
  if (listing->fd >= 0) {
    ssize_t length = getdents64(listing->fd, entries, sizeof entries);
    if (length < 0 && errno != ENOENT) /* ENOENT: removed meanwhile. */
      note_problem("%s: cannot be listed: %s", listing->directory, strerror(errno));
    for (ssize_t at = 0; at < length;) {
      const struct dirent64 *entry = (const struct dirent64 *)(const void *)(entries + at);
      add_entry(listing, entry);
      at += entry->d_reclen;
    }
    if (length <= 0) close_directory(listing);
  }
  listing->spent_us += now_us() - begun_at;
}
