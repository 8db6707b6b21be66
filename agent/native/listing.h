/* One page of a directory's names, read in slices; see listing-calls.c for what it holds. */
#pragma once
#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

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
  char *root, *path, *attribute, *prefix, *after; /* owned by it */
  size_t prefix_bytes, after_bytes;
  uint32_t limit, count;
  bool is_cut;           /* there is more than the page */
  struct entry *entries; /* as they came */
  struct entry **heap;   /* the greatest key first; sorted once all names were read */
  DIR *directory;        /* null: not opened yet, or closed */
  bool is_sorted, is_done;
  uint32_t inspected; /* entries of the sorted heap */
};

/*
 * Works on the page for about so long, until `is_done`. Answers 0 or an errno, after which the
 * listing can only be freed.
 */
int advance_listing(struct listing *listing, uint32_t milliseconds);

/* Closes the directory; what was read stays. */
void close_listing(struct listing *listing);

void free_listing(struct listing *listing);
