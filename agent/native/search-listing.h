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
  struct queue directories; /* found and not listed yet */
  struct queue files;       /* found and given to no worker yet */
  char *directory;          /* at hand; its descriptor is fd, or -1 when none is */
  int fd;
  bool recursive;
  uint64_t spent_us;
};

void queue_push(struct queue *queue, char *path);
char *queue_shift(struct queue *queue);
bool listing_start(struct listing *listing, bool recursive);
bool listing_done(const struct listing *listing);
void listing_step(struct listing *listing);
