/* Listing a tree level by level, a piece at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct queue {
  char **paths;
  size_t first, count, capacity;
};

struct listing {
  struct queue directories; /* Found, not listed yet. */
  struct queue files;       /* Found, not given to a worker yet. */
  char *directory;          /* Being listed; `fd` is its descriptor, -1 for none. */
  int fd;
  bool recursive;
  uint64_t spent_us;
};

void queue_push(struct queue *queue, char *path);
char *queue_shift(struct queue *queue);
bool listing_start(struct listing *listing, bool recursive);
bool listing_done(const struct listing *listing);
void listing_step(struct listing *listing);
