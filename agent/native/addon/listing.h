/* A page of a directory's names, read in slices; see listing-calls.c for what it holds. */
#pragma once
#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum { NAME_BYTES_MAX = 255, LIMIT_MAX = 10001, PATH_BYTES_MAX = 4096 };

struct entry {
  char key[NAME_BYTES_MAX +
           2]; /* A directory's ends with a slash; then NUL, which does not count. */
  size_t length;
  bool is_directory, is_link, is_found;
  struct stat status;
  size_t record_bytes;
  uint8_t *record; /* NULL when it has none. */
};

struct listing {
  char *root, *path, *attribute, *prefix, *after; /* Owned by the listing. */
  size_t prefix_bytes, after_bytes;
  uint32_t limit, count;
  bool is_cut;           /* There are more entries than the page holds. */
  struct entry *entries; /* In the order of the directory. */
  struct entry **heap;   /* The greatest key first; sorted once all names are read. */
  DIR *directory;        /* NULL before it is opened and after it is closed. */
  bool is_sorted, is_done;
  uint32_t inspected; /* Entries of the sorted heap. */
};

/*
 * Works on the page for about that long; repeat it until `is_done`. 0, or an error number, after
 * which the listing can only be freed.
 */
int advance_listing(struct listing *listing, uint32_t milliseconds);

/* Closes the directory; what was read stays. */
void close_listing(struct listing *listing);

void free_listing(struct listing *listing);
